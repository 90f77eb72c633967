"""Chatting on a cache: the models on offer, the token loop, conversations over several turns, and the compiled decode step."""
