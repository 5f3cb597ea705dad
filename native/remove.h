/* A tree goes away, whatever somebody does in it meanwhile: by descriptors, never through a link, at any depth. */
#pragma once

#include "arena.h"

/* `name` in `directory`, with all that is in it. Takes TRAIL_MEMORY of `memory`. 0 or -errno. */
int remove_tree(int directory, const char *name, struct arena *memory);
