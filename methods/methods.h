/*
methods/methods.h: the only interface of the base to methods from papers. With METHODS_NO (make METHODS=no) the trainer
is built without them.
*/
#pragma once

#ifdef METHODS_NO
#include "none.h"
#else
#include "async_dp.h"
#include "caat.h"
#endif
