# Targets of the book (docs/); dev/dev.mk lists them for `make help-dev`. Included by dev.mk.

# ---- docs that are run, and their pictures
BOOK_TOOLS := tables simulate tokenize
BOOK := train_gpt plan $(BOOK_TOOLS:%=$(BUILD)/%)
book: report $(BOOK)
docs-check: book
	@dev/test/system/check_docs.py $(FILES)
pictures: $(BOOK)
	@BUILD="$(BUILD)" python3 dev/plot/plot.py

ladder:
	@CC="$(CC)" MPICC="$(MPICC)" MPIRUN="$(MPIRUN)" docs/ladder/ladder.py --plot docs/images/ladder.svg

kernel_ladder:
	@CXX="$(CXX)" docs/ladder/kernels/kernels.py

.PHONY: book docs-check ladder kernel_ladder pictures

# ---- exercises: make exercise, make exercise N=7 [hint|check|solution]. These words are targets only beside it.
ifneq ($(filter exercise,$(MAKECMDGOALS)),)
exercise_words := $(filter hint check solution,$(MAKECMDGOALS))
exercise:
	@MPIRUN="$(MPIRUN)" dev/exercises/exercise.py $(N) $(exercise_words)
hint check solution: exercise
	@:
.PHONY: check exercise hint solution
endif
exercise_check:
	@MPIRUN="$(MPIRUN)" dev/exercises/verify.py $(N)
.PHONY: exercise_check
