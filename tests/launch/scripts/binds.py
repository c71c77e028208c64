"""Uses builtins as attributes of classes, sends and compiles them."""

import copy
import inspect
import os
import pickle
import types

import torch


class Reader:
    log = print
    opener = open
    look = os.stat


reader = Reader()
reader.log("hello")
with reader.opener(__file__) as file:
    assert file.readline().startswith('"""Uses')
assert reader.look(__file__).st_size > 0
for one, name in ((print, "print"), (open, "open"), (os.stat, "stat")):
    assert pickle.loads(pickle.dumps(one)) is one
    assert copy.deepcopy(one) is one
    assert one.__name__ == one.__qualname__ == name
    assert one.__doc__
    assert isinstance(one, types.BuiltinFunctionType)
    assert "built-in" in repr(one)
    assert inspect.signature(one).parameters


def within(x):
    y = x + 1
    print("inside", y.shape[0])
    with open(__file__) as file:
        file.readline()
    return y * 2


assert torch.equal(torch.compile(within, backend="eager")(torch.ones(3)), torch.full((3,), 4.0))
torch._dynamo.config.reorderable_logging_functions.add(print)


def reordered(x):
    print("late")
    return x + 1


assert torch.compile(reordered, backend="eager", fullgraph=True)(torch.ones(1)).item() == 2
