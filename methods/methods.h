/*
methods/methods.h: the face of the methods that papers add to the plain trainer. With METHODS_NO (make METHODS=no) the
trainer is built without them.
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
