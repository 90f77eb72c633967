"""How well a model goes on from each cache: `python -m kvcache.measure quality`, and the page's Measure tab.

`spec` reads which caches, `texts` has what is read, `tasks` what is asked, `prompts` puts both into a model's own form, `answers` asks, `run` says in which order,
`results` what came of it, `figures` draws it, `command` is the command line.
"""
