/*
method_settings.h: the options of methods/: method_options_check refuses what has no effect or does not fit, and
settings_async makes the configuration of asynchronous data parallelism. A part of settings.h, which includes it.
*/
#pragma once

// Refuses options of another mode of data parallelism, which would have no effect.
static inline bool method_options_check(const Settings* o, Error* error) {
    const Settings usual = settings_default();
    const char* mode = dp_mode_names[o->dp_mode];
    const bool diloco = o->dp_mode == DP_DILOCO, gradient = o->dp_mode == DP_DELAYED || o->dp_mode == DP_DC_S3GD;
    const struct {
        const char* name;
        bool given, fits;
    } options[] = {{"outer-delay", o->outer_delay >= 0, gradient || diloco},
                   {"dc-lambda", o->dc_lambda >= 0, gradient},
                   {"local-steps", o->local_steps > 0, diloco},
                   {"fragments", o->fragments > 0, diloco},
                   {"outer-lr", o->outer_lr != usual.outer_lr, diloco},
                   {"outer-momentum", o->outer_momentum != usual.outer_momentum, diloco},
                   {"outer-alpha", o->outer_alpha >= 0, diloco},
                   {"eager", o->eager, diloco},
                   {"outer-bits", o->outer_bits > 0, diloco},
                   {"outer-top-k", o->outer_top_k > 0, diloco},
                   {"outer-error-decay", o->outer_error_decay >= 0, diloco}};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (!options[i].given || options[i].fits) continue;
        const char* modes = "diloco";
        if (strcmp(options[i].name, "outer-delay") == 0) modes = "delayed, dc-s3gd and diloco";
        if (strcmp(options[i].name, "dc-lambda") == 0) modes = "delayed and dc-s3gd";
        return fail(error, "--%s has no effect with --dp-mode %s; it belongs to %s", options[i].name, mode, modes);
    }
    if (gradient && o->outer_delay > 1)
        return fail(error, "--outer-delay %lld: --dp-mode %s has a delay of 0 or 1", (long long)o->outer_delay, mode);
    if (gradient && o->outer_delay == 0 && o->dc_lambda > 0)
        return fail(error, "--dc-lambda %g needs a delay, which --outer-delay 0 excludes; drop one of the two",
                    o->dc_lambda);
    if (o->eager && (o->outer_delay >= 0 || o->outer_alpha >= 0))
        return fail(error, "--eager is incompatible with --%s; drop one of the two",
                    o->outer_delay >= 0 ? "outer-delay" : "outer-alpha");
    if (o->eager && (o->outer_top_k || o->outer_error_decay >= 0))
        return fail(
            error,
            "--eager is incompatible with --%s: what is never sent would take the sites apart; drop one of the two",
            o->outer_top_k ? "outer-top-k" : "outer-error-decay");
    if (o->outer_error_decay >= 0 && !o->outer_bits && !o->outer_top_k)
        return fail(error, "--outer-error-decay needs --outer-top-k or fewer --outer-bits: without them all is sent");
    if (o->zero && o->dp_mode == DP_DELAYED && o->optimizer == OPTIMIZER_MUON) // both need the gradients' memory
        return fail(error, "--zero %lld is incompatible with --dp-mode delayed and --optimizer muon; drop --zero",
                    (long long)o->zero);
    return async_schedule_check_zero((DpMode)o->dp_mode, (int)o->zero, error);
}

static inline double given_or(double value, double usual) { return value < 0 ? usual : value; }

// The configuration of --dp-mode and its options, for a number of sites.
static inline bool settings_async_config(AsyncConfig* config, const Settings* o, int sites, Error* error) {
    static const int outer_bits[] = {32, 8, 4, 2};
    const bool diloco = o->dp_mode == DP_DILOCO, sparse = o->outer_top_k > 0;
    AsyncConfig r = {DP_SYNC, sites, 1, 0, 1, false, 32, 0, 0, 0, 0, 0, 0};
    *config = r;
    if (!settings_is_training(o)) return true;
    r.mode = (DpMode)o->dp_mode;
    if (diloco) r.period = o->local_steps ? o->local_steps : 32;
    r.fragments = o->fragments ? (int)o->fragments : 1;
    r.eager = o->eager;
    r.delay = o->outer_delay;
    if (o->outer_delay < 0) r.delay = o->dp_mode == DP_DELAYED || o->dp_mode == DP_DC_S3GD;
    if (r.eager) r.delay = r.period;
    r.bits = outer_bits[o->outer_bits];
    r.compensation = o->dc_lambda;
    if (o->dc_lambda < 0) r.compensation = o->dp_mode == DP_DC_S3GD && r.delay > 0 ? 0.2 : 0;
    r.top_k = (int)o->outer_top_k;
    r.error_decay = given_or(o->outer_error_decay, sparse ? 0.95 : 1);
    r.outer_lr = given_or(o->outer_lr, sparse ? 1 : 0.7);
    r.outer_momentum = given_or(o->outer_momentum, sparse ? 0 : 0.9);
    if (r.mode == DP_DELAYED && r.delay == 0) r.mode = DP_SYNC; // no gradient is delayed
    r.mix = o->outer_alpha;
    if (o->outer_alpha < 0) r.mix = diloco && r.delay > 0 && r.delay < r.period ? 0.5 : 0;
    if (o->on_nan && async_schedule_are_late(&r))
        return fail(error, "--on-nan skip needs all ranks in every step, which --dp-mode %s does not; drop one",
                    dp_mode_names[o->dp_mode]);
    if (r.fragments > r.period)
        return fail(error,
                    "--fragments %d is more than --local-steps %lld: each is sent in a step of its own; use fewer",
                    r.fragments, (long long)r.period);
    if (r.delay > r.period)
        return fail(
            error,
            "--outer-delay %lld is more than --local-steps %lld, the distance of two outer steps; use a shorter delay",
            (long long)r.delay, (long long)r.period);
    if (diloco && r.delay == r.period && r.mix > 0)
        return fail(error,
                    "--outer-alpha %g is incompatible with --outer-delay %lld, a delay of a whole outer step; use 0",
                    r.mix, (long long)r.delay);
    if (diloco && async_schedule_learned(&r, o->steps) == 0)
        return fail(
            error,
            "--steps %lld: a part of the model is merged for the first time after step %lld (--local-steps %lld%s); "
            "use more --steps, or fewer --local-steps",
            (long long)o->steps, (long long)(r.period + (r.eager ? 0 : r.delay)), (long long)r.period,
            r.delay > 0 && !r.eager ? " and --outer-delay" : "");
    *config = r;
    return true;
}

static inline AsyncConfig settings_async(const Settings* o, const Mesh* mesh) {
    AsyncConfig config;
    Error error;
    if (!settings_async_config(&config, o, mesh->sites, &error)) die_usage("%s", error.text);
    return config;
}
