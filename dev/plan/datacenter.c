/*
datacenter.c: plans a datacenter (datacenter.h) and prints the plan, every line with its mark: confirmed, back-computed
or assumed.

    datacenter                                                   the paper's (Gherghescu et al. 2024)
    datacenter --file dev/plan/clusters/next-generation.txt      the same, from a file to copy and change
    datacenter --models 20T,400T                                 other models in it
    datacenter --inputs                                          what it is made from, as well
*/
#include "../../options.h"
#include "datacenter.h"

// "20T,400T" in place of the models that there are.
static bool read_models(Datacenter* d, const char* list, Error* error) {
    d->models = 0;
    for (const char* at = list;; at++) {
        char word[64];
        const size_t n = strcspn(at, ",");
        const Input* in = &model_inputs[0];
        double parameters;
        snprintf(word, sizeof word, "%.*s", (int)(n < 63 ? n : 63), at);
        if (!quantity_read(word, NULL, in->quantity, &parameters) || parameters < in->low || parameters > in->high)
            return fail(error, "--models %s: write 50T,100T, with 1B to 100000T parameters each", list);
        if (d->models == DATACENTER_MODELS) return fail(error, "--models %s: at most %d", list, DATACENTER_MODELS);
        datacenter_add_model(d, fact(parameters, ASSUMED), 0);
        at += n;
        if (!*at) return true;
    }
}

int main(int argc, char** argv) {
    const char *file = NULL, *models = NULL;
    bool inputs = false, help = false;
    Option table[] = {
        option_string("file", &file, "FILE", "the datacenter, see dev/plan/datacenter.h; the paper's if none is given"),
        option_string("models", &models, "A,B,...", "parameters of the models to train, such as 50T,100T"),
        option_flag("inputs", &inputs, "print what the plan is made from, first"),
        option_flag("help", &help, "this list"),
    };
    const int n = (int)(sizeof table / sizeof table[0]);
    Error error = {""};
    process.name = "datacenter";
    if (!options_parse(table, n, argc, argv, &error)) die_usage("%s", error.text);
    if (help) {
        printf("datacenter: from a budget to racks, power, models, meshes and what the links have to carry\n");
        options_help(table, n, stdout);
        return 0;
    }
    Datacenter d = datacenter_default();
    if (file && !datacenter_read(&d, file, &error)) die_usage("%s", error.text);
    if (models && !read_models(&d, models, &error)) die_usage("%s", error.text);
    DatacenterPlan* plan = (DatacenterPlan*)checked_malloc(sizeof(DatacenterPlan), "the plan");
    if (!datacenter_plan(plan, &d, &error)) die_usage("%s", error.text);
    if (inputs) datacenter_print_inputs(&d, stdout);
    datacenter_print(plan, stdout);
    free(plan);
    return 0;
}
