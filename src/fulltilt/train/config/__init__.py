"""A training run as YAML.

config.py      its sections, as types                  file.py  a file read, overridden and checked
references.py  things named `package.module:name`      names.py what it names, looked up before anything is built
data.py        the section `data`, as feeds
"""
