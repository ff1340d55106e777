/*
methods/methods.h: the only interface of the base to methods from papers. With METHODS_NO (make METHODS=no) the trainer
is built without them.
*/
#ifndef METHODS_H
#define METHODS_H

#ifdef METHODS_NO
#include "none.h"
#else
#include "async_dp.h"
#include "caat.h"
#endif

#endif
