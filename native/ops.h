/* The file operations. What each is asked and answers stands in schema.py; how they are called, in op.h. */
#pragma once

#include "op.h"

op_function serve_stat, serve_mkdir, serve_set;
op_function serve_remove, serve_move, serve_copy;
op_function serve_list, serve_find, serve_grep;
op_function serve_read, serve_write;
op_function serve_upload, serve_download;
op_function serve_watch;
