"""One training step: fast where that pays, safe everywhere, never waiting for the device.

step.py       HybridPrecisionTrainer                   engine.py     forward, loss, backward, optimizers
device.py     where the model lives                    roles.py      what of a batch is the target, the loss
precision.py  fp32, tf32, bf16, fp16                   optim.py      a user's optimizers, changed in place
choose.py     what to try, what to keep (pure)         trials.py     the trials, on the real model
snapshot.py   state taken and put back, bit for bit    graphed.py    the whole step as a CUDA graph
micro.py      micro-batches; out of memory             preparing.py  batches made ready in the background
ema.py        averaged weights                         clock.py      times without waiting
"""
