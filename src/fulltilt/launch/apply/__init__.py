"""Settings put upon a script from outside, in its own process.

install.py   all of them                               loader.py     DataLoaders      batches.py  their batches
model.py     layout, precision, compile                graphed.py    forward and backward as CUDA graphs
decode.py    simplejpeg in Pillow's place              tried.py      … first tried without a trace
augment.py   transforms on the GPU                     behind.py     … which weights stand behind an output
pictures.py  … what workers hand over for them         looks.py      whether a module still looks as it did
chains.py    … which can be moved                      changed.py    a data set that changes between epochs
             (known_torchvision.py,                    as_bytes.py   images as bytes, made floats where they are used
              known_albumentations.py)                 ending_in_bytes.py  … a Compose that puts its end off
living_on.py workers that draw as new ones would       unfinished.py       … what it makes, passing for floats
"""
