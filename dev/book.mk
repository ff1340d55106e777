# Targets of the book (docs/); dev/dev.mk lists them for `make help-dev`.

# ---- exercises: make exercise, make exercise N=7 [hint|check|solution]. These words are targets only beside it.
exercises = @MPIRUN="$(MPIRUN)" python3 dev/exercises/exercise.py
ifneq ($(filter exercise,$(MAKECMDGOALS)),)
exercise_words := $(filter hint check solution,$(MAKECMDGOALS))
exercise:
	$(exercises) $(N) $(exercise_words)
hint check solution: exercise
	@:
.PHONY: check exercise hint solution
endif
exercise_check:
	$(exercises) --verify $(N)
.PHONY: exercise_check
