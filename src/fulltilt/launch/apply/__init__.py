"""Settings put upon a script from outside, in its own process.

install.py   all of them                               loader.py     DataLoaders
batches.py   their batches, ahead of the loop          places.py     … where the script moves them
living_on.py workers that draw as new ones would       resident.py   … of tensors that stay on the device
next_epoch.py … and begin an epoch ahead of time
model.py     layout, precision, compile                graphed.py    forward and backward as CUDA graphs
decode.py    simplejpeg in Pillow's place              tried.py      … first tried without a trace
augment.py   transforms on the GPU                     behind.py     … which weights stand behind an output
pictures.py  … what workers hand over for them         looks.py      whether a module still looks as it did
chains.py    … which can be moved                      as_bytes.py   images as bytes, made floats where they are used
             (known_torchvision.py,                    ending_in_bytes.py  … a Compose that puts its end off
              known_albumentations.py)                 unfinished.py       … what it makes, passing for floats
stand_in.py  what passes for a Compose in its place
"""
