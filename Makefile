# acme_outbox: a transactional outbox for PostgreSQL and RabbitMQ
#
#   make                build the extension and the bridge
#   make install        install both (needs the rights to write there)
#   make installcheck   regression and isolation tests in a running server,
#                       found through the usual PG* variables
#   make test           every test, in private servers; SUITES= and TESTS= select
#   make demo           a trading platform of eight services, with faults
#   make bench          measure throughput
#   make mutants        plant faults, one at a time: a test must notice each
#   make soak           everything at once, with faults at random; SOAK_MINUTES
#   make fuzz           random input for what the bridge reads; FUZZ_SECONDS each
#   make deps           install the Debian packages that building and testing need
#   make checkver       the version is the same wherever it is written
#   make clean
#   make help           this list
#
# WERROR= builds with warnings that are only warnings.

EXTENSION  := acme_outbox
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" acme_outbox.control)
WERROR    ?= -Werror

# The shared library: the server side, one noun per file.
MODULE_big = acme_outbox
OBJS       = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c)))
PGFILEDESC = "acme_outbox - transactional outbox"
PG_CFLAGS  = -std=gnu11 -Wall -Wextra $(WERROR) \
             -Wno-unused-parameter -Wno-sign-compare \
             -Wno-missing-field-initializers -Wno-cast-function-type

# The install script: sql/NN_part.sql in the order of their numbers.
SQL_PARTS  = $(sort $(wildcard sql/[0-9][0-9]_*.sql))
DATA       = $(wildcard sql/acme_outbox--*--*.sql)
DATA_built = sql/acme_outbox--$(EXTVERSION).sql

# Tests for a running server. The one that creates the extension comes first.
# The expected output is in expected/.
TEST_NAMES     = $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
TEST_FIRST     = install setup
REGRESS        = $(foreach t,$(TEST_FIRST),$(filter $(t),$(TEST_NAMES))) \
                 $(filter-out $(TEST_FIRST),$(TEST_NAMES))
REGRESS_OPTS   = --inputdir=test
ISOLATION      = $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/iso_*.spec)))
ISOLATION_OPTS = --inputdir=test

EXTRA_CLEAN = sql/acme_outbox--$(EXTVERSION).sql test/tools/amqp_probe test/tools/fault_proxy

PG_CONFIG ?= $(firstword $(wildcard /usr/lib/postgresql/15/bin/pg_config) pg_config)
PGXS      := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

.DEFAULT_GOAL := all

ifneq ($(wildcard $(PGXS)),)
# No bitcode: it needs the very clang PostgreSQL was built with.
override with_llvm := no
include $(PGXS)
else
all install installcheck:
	@echo "the development files of PostgreSQL 15 are missing; run: make deps" >&2
	@exit 1
clean:
endif

# NO_BRIDGE=1 leaves the bridge out.
all: checkver $(if $(NO_BRIDGE),,bridge)
install: $(if $(NO_BRIDGE),,install-bridge)
uninstall: $(if $(NO_BRIDGE),,uninstall-bridge)
clean: clean-bridge

$(OBJS): $(wildcard src/*.h)

$(DATA_built): $(SQL_PARTS) acme_outbox.control Makefile
	cat $(SQL_PARTS) > $@

# Whatever carries the version besides acme_outbox.control must agree with it.
checkver:
	@test -n "$(EXTVERSION)" || \
		{ echo "acme_outbox.control has no default_version" >&2; exit 1; }
	@v=$$(sed -n 's/^   "version" *: *"\(.*\)".*/\1/p' META.json); \
	test "$$v" = "$(EXTVERSION)" || \
		{ echo "META.json has version $$v, acme_outbox.control $(EXTVERSION)" >&2; exit 1; }
	@test ! -e CHANGELOG.md || { \
	v=$$(sed -n 's/^## *\[\{0,1\}\([0-9][0-9.]*\).*/\1/p' CHANGELOG.md | head -n 1); \
	test "$$v" = "$(EXTVERSION)" || \
		{ echo "CHANGELOG.md has version $$v, acme_outbox.control $(EXTVERSION)" >&2; exit 1; }; }

bridge:
	+$(MAKE) -C bridge

install-bridge: bridge
	+$(MAKE) -C bridge install

uninstall-bridge:
	+$(MAKE) -C bridge uninstall

clean-bridge:
	+$(MAKE) -C bridge clean

# Reads and fills queues for the tests and the demo.
test/tools/amqp_probe: test/tools/amqp_probe.c
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra $(WERROR) -o $@ $< \
		$$(pkg-config --cflags --libs librabbitmq json-c)

# Stands between bridge and broker, and misbehaves.
test/tools/fault_proxy: test/tools/fault_proxy.c
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra $(WERROR) -o $@ $<

probe: test/tools/amqp_probe test/tools/fault_proxy

deps:
	test/env/deps

test:
	SUITES="$(SUITES)" TESTS="$(TESTS)" test/run

demo:
	examples/trading/run

bench:
	test/bench/run

# Plants faults into a copy of the tree: the tests must notice each.
mutants:
	test/mutants/run $(MUTANTS)

# Everything at once, with faults at random.
soak:
	SUITES=soak SOAK_MINUTES=$(or $(SOAK_MINUTES),20) test/run

# What the bridge reads, against random input: FUZZ_SECONDS for each target.
fuzz:
	+$(MAKE) -C test/fuzz run SECONDS=$(or $(FUZZ_SECONDS),60)

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

.PHONY: all help checkver bridge install-bridge uninstall-bridge clean-bridge probe deps test demo bench fuzz mutants soak
