/*
methods/none.h: replaces the methods in a build without them (make METHODS=no). method_options_check refuses their
options, so stage->async is NULL and no model is a CAAT-Net: what is called here does nothing.
*/
#pragma once

#include "../parallel.h"

enum { DP_SYNC };

typedef struct {
    double compensation;
} AsyncConfig;

#define async_schedule_fit(config, L, error) ((void)(config), true)
#define async_schedule_scope(config) ((void)(config), SCOPE_WORLD)

#define async_dp_plan(stage, config) ((void)(stage), (void)(config))
#define async_dp_plan_as(stage, mine) ((void)(stage), (void)(mine))
#define async_dp_allocate(stage) ((void)(stage))
#define async_dp_free(stage) ((void)(stage))
#define async_dp_init(stage) ((void)(stage))
#define async_dp_resume(stage) ((void)(stage))
#define async_dp_updates(stage, step) (step)
#define async_dp_step_begin(stage) ((void)(stage))
#define async_dp_step_end(stage, seed, step) ((void)(stage), (int64_t)0)
#define async_dp_progress(stage) ((void)(stage))
#define async_dp_finish_grad_sync(stage, chunk) ((void)(stage))
#define async_dp_set_compensation(stage, squares) ((void)(stage))
#define async_dp_before_update(stage, chunk) ((void)(stage))
#define async_dp_after_update(stage, chunk) ((void)(stage))
#define async_dp_load_global(stage, seed, step) ((void)(stage))
#define async_dp_restore_local(stage, seed, step) ((void)(stage))
#define async_dp_drain(stage) ((void)(stage))
#define async_dp_gather_values(stage) ((void)(stage))
#define async_dp_last_grad_is_finite(stage) ((void)(stage), true)
#define async_dp_compresses(stage) ((void)(stage), false)
#define async_dp_period(stage) ((int64_t)1)
#define async_dp_traffic(stage, layout, first, last) gradient_traffic(layout, sizeof(floatX), 0, 0)
#define async_dp_text(text, size, stage) ((void)(text))
#define async_dp_print(stage, steps) ((void)(stage))

#define caat_reduce_start(stage, acts, x, back) ((void)(x))
#define caat_reduce_finish(stage, acts, z, x, back) ((void)(z), (void)(x))
#define caat_bias_grad(stage, acts, layer, bias, dx) ((void)(layer), (void)(bias), (void)(dx))
#define caat_copy_streams(stage, acts, x, one) ((void)(x), (void)(one))
#define caat_reduce_streams(stage, acts, dx) ((void)(dx))
