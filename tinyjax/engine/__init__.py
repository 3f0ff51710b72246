"""Where interpreters, lowering and runtime meet: arrays, user transformations, dispatch, caches."""
