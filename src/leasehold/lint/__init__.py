"""Finds dangerous locking code in any Python code base, whatever library it uses. It reads source code; it runs none.

A rule is one file in `rules`, whose docstring is its page. `module` is what a rule may ask about a file, `kinds` is
what is known about libraries, and `stores` and `locks` say which calls take, renew and give back a lock.
"""
