"""Files that come slowly, as from a network that can't say what is in memory; and pictures that take long to decode.

And no process that gives way to all others: on a busy machine one would hardly be there, and a test wait for ever.
"""

import os
import sys
import time

line = " ".join(sys.orig_argv)
open_seconds = float(os.environ.get("FULLTILT_TEST_SLOW_OPEN", "0"))
decode_seconds = float(os.environ.get("FULLTILT_TEST_SLOW_DECODE", "0"))

os.nice = lambda _: 0

if open_seconds and os.environ.get("FULLTILT_TEST_SLOW_MODULE", "fulltilt.feed.images.decoder") in line:

    def watch(event, args):
        if event == "open" and str(args[0]).endswith(".jpg"):
            time.sleep(open_seconds)

    sys.addaudithook(watch)
    del os.RWF_NOWAIT

if decode_seconds and "fulltilt.feed.images.decoder" in line:
    import fulltilt.decode

    decode_into = fulltilt.decode.decode_into

    def slowly(*args, **options):
        time.sleep(decode_seconds)
        return decode_into(*args, **options)

    fulltilt.decode.decode_into = slowly
