"""How fast caches decode beside upstream's: `python -m kvcache.measure speed`, and the page's Measure tab.

`contenders` says what is timed, `rigs` on which models, `timing` how one of them is timed, `run` in which order,
`results` what came of it, `figures` draws it, `command` is the command line.
"""
