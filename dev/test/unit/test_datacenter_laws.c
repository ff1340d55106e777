/*
test_datacenter_laws.c: scaling laws of the datacenter planner beside their closed forms and the minimum of their loss;
the largest model beside the solution for a known speed.
*/
#include "../../../planner/datacenter.h"
#include "test.h"

static bool near(double x, double y, double relative) { return fabs(x / y - 1) <= relative; }

// The loss of P parameters for C FLOP.
static double loss_of(double A, double B, double a, double b, double P, double C) {
    return A / pow(P, a) + B / pow(C / 6 / P, b);
}

static void test_laws(void) {
    static const double fit[2][4] = {{406.4, 410.7, 0.34, 0.28}, {482.01, 2085.43, 0.3478, 0.3658}};
    Law law[LAWS];
    laws_known(law, 20);
    for (int k = 0; k < LAWS; k++) {
        double worst = 0;
        for (double P = 1e9; P < 1e15; P *= 3) {
            const double C = law_flops(&law[k], P);
            worst = fmax(worst, fabs(C / 6 / law_tokens(&law[k], C) / P - 1));
        }
        check(worst < 1e-11, "%s: C of P, and P of C, to %.1e", law[k].name, worst);
        check(law[k].low < law[k].exponent && law[k].exponent < law[k].high, "  exponent %.3f to %.3f", law[k].low,
              law[k].high);
    }
    for (double P = 1e9; P < 1e15; P *= 10) {
        check(near(law_flops(&law[LAW_RATIO], P), 120 * P * P, 1e-12), "20 tokens a parameter: C = 120 P^2");
        Law other[LAWS];
        laws_known(other, 5);
        check(near(law_tokens(other, law_flops(other, P)), 5 * P, 1e-12), "5 tokens a parameter: D = 5 P");
    }
    for (int i = 0; i < 2; i++) {
        const double *f = fit[i], C[2] = {2.99e29, 1.2e30};
        for (int k = 0; k < 2; k++) {
            const double D = law_tokens(&law[LAW_HOFFMANN + i], C[k]), P = C[k] / 6 / D;
            double best = 0, least = INFINITY;
            for (double x = 1e12; x < 1e15; x *= 1.0005) {
                const double loss = loss_of(f[0], f[1], f[2], f[3], x, C[k]);
                if (loss < least) best = x;
                least = fmin(least, loss);
            }
            check(near(P, best, 0.001), "%s, %.1e FLOP: P %.4e, where the loss is least %.4e", law[1 + i].name, C[k], P,
                  best);
            if (i == 0) check(fabs(D / P - (k ? 380 : 330)) < 5, "  %.0f tokens a parameter, by the notes", D / P);
        }
    }
    const double llama = 6 * 402e9 * 16.55e12;
    check(near(law_tokens(&law[LAW_LLAMA3], llama), 16.55e12, 1e-12) &&
              near(law_tokens(&law[LAW_LLAMA3], 10 * llama), 16.55e12 * pow(10, 0.53), 1e-12),
          "Llama 3: 402B on 16.55T, exponent 0.53");
}

static void test_largest(void) {
    static DatacenterPlan p;
    memset(&p, 0, sizeof p);
    laws_known(p.law, 20);
    check(isnan(datacenter_largest(&p, &p.law[0], 90)), "no size has a mesh: no largest model");
    // With as many FLOP/s for every size the model is what the law makes of all FLOP.
    const double speed = 1e21, sizes[] = {40e12, 2e12, 9e12, 100e12};
    for (int n = 1; n <= 4; n++) {
        plan_size(&p, sizes[n - 1], speed / 6 / sizes[n - 1]);
        plan_size(&p, 3e12, 0); // without a mesh: left out
        for (int k = 0; k < LAWS; k++) {
            for (double days = 30; days < 3000; days *= 3) {
                const double C = speed * days * 86400, P = C / 6 / law_tokens(&p.law[k], C);
                const double largest = datacenter_largest(&p, &p.law[k], days);
                check(p.sizes == n && near(largest, P, 1e-9), "%d sizes, %s, %.0f d: %.6g T, by its law %.6g T", n,
                      p.law[k].name, days, largest / 1e12, P / 1e12);
            }
        }
    }
    for (int i = 1; i < p.sizes; i++) check(p.size[i - 1].parameters < p.size[i].parameters, "sizes ascend");
    // Another slope between each two sizes: 20 P = t r (P / a)^s, and exactly a size in its own time
    p.sizes = 0;
    plan_size(&p, 4e12, 1e8);
    plan_size(&p, 1e12, 5e8);
    plan_size(&p, 16e12, 1e7);
    for (int i = 0; i < 3; i++) {
        const double days = 20 * p.size[i].parameters / p.size[i].rate / 86400;
        check(near(datacenter_largest(&p, p.law, days), p.size[i].parameters, 1e-9), "%.0f T in its own %.1f d",
              p.size[i].parameters / 1e12, days);
    }
    for (double days = 0.3; days < 1000; days *= 2) {
        const int i = days * 86400 > 20 * 4e12 / 1e8; // the pair
        const SizeSpeed *a = &p.size[i], *b = a + 1;
        const double s = log(b->rate / a->rate) / log(b->parameters / a->parameters);
        const double P = pow(days * 86400 * a->rate * pow(a->parameters, -s) / 20, 1 / (1 - s));
        const double largest = datacenter_largest(&p, p.law, days);
        check(near(largest, P, 1e-9), "%.1f d: %.6g T, solved %.6g T", days, largest / 1e12, P / 1e12);
    }
    plan_size(&p, 4e12, 1e8);
    check(isfinite(datacenter_largest(&p, p.law, 10)), "a size that is asked for twice");
}

int main(void) {
    process.name = "test_datacenter_laws";
    test_laws();
    test_largest();
    return test_end();
}
