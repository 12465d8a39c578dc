# shellcheck shell=bash
# Shared by the scripts that start private servers: the suite runner, the demo
# and the benchmark. Sourced, never run.
#
# PostgreSQL refuses to run as root, so under root everything that belongs to a
# server runs as the user "postgres", in folders owned by it.

# shellcheck disable=SC2034
ACME_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PGBIN=${PGBIN:-/usr/lib/postgresql/15/bin}
RABBITMQ_BIN=${RABBITMQ_BIN:-/usr/lib/rabbitmq/bin}
SERVER_USER=postgres

say()
{
	printf '%s\n' "$*"
}

die()
{
	printf '%s\n' "$*" >&2
	exit 1
}

# Become a command, run as the user that owns the servers: "server_exec cmd &
# pid=$!" is the pid of cmd itself.
server_exec()
{
	if [ "$(id -u)" = 0 ]; then
		exec setpriv --reuid "$SERVER_USER" --regid "$SERVER_USER" --init-groups \
			env HOME="${ACME_HOME:-/tmp}" USER="$SERVER_USER" LOGNAME="$SERVER_USER" "$@"
	else
		exec "$@"
	fi
}

# Run a command as that user, and wait for it.
as_server()
{
	(server_exec "$@")
}

# Make a folder and give it to the user that owns the servers.
server_dir()
{
	mkdir -p "$1"
	if [ "$(id -u)" = 0 ]; then
		chown "$SERVER_USER:" "$1"
	fi
}

# Print N free TCP ports of 127.0.0.1, different from one another.
free_ports()
{
	perl -MIO::Socket::INET -e '
		my @held = map { IO::Socket::INET->new(Listen => 1, Proto => "tcp",
			LocalAddr => "127.0.0.1", LocalPort => 0) // die "no free port: $!\n" }
			1 .. $ARGV[0];
		print join(" ", map { $_->sockport } @held), "\n";' "$1"
}

# wait_until SECONDS COMMAND...: true as soon as the command succeeds.
wait_until()
{
	local deadline=$((SECONDS + $1))
	shift
	until "$@"; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.1
	done
}

# True while a process exists and is not a zombie.
alive()
{
	local state
	state=$(sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null) || return 1
	[ -n "$state" ] && [ "$state" != Z ]
}

gone()
{
	! alive "$1"
}

# stop_pid PID [SECONDS]: ask, wait, then insist.
stop_pid()
{
	local pid=$1 seconds=${2:-20}
	alive "$pid" || return 0
	kill -TERM "$pid" 2>/dev/null || true
	wait_until "$seconds" gone "$pid" || kill -KILL "$pid" 2>/dev/null || true
}

# private_postgres DIR: a copy of the machine's PostgreSQL in which the built
# extension is installed; PGBIN and PG_CONFIG name it from then on. PostgreSQL
# finds its files relative to its programs, so a copy is on its own.
private_postgres()
{
	local root=$1 lib share include
	lib=$(cd "$("$PGBIN/pg_config" --bindir)/.." && pwd)
	share=$("$PGBIN/pg_config" --sharedir)
	include=$(dirname "$(dirname "$("$PGBIN/pg_config" --includedir-server)")")
	mkdir -p "$root$(dirname "$lib")" "$root$(dirname "$share")" \
		"$root$(dirname "$include")"
	cp -a "$lib" "$root$(dirname "$lib")/"
	cp -a "$share" "$root$(dirname "$share")/"
	ln -s "$include" "$root$include"
	chmod -R a+rX "$root"
	export PGBIN=$root$lib/bin PG_CONFIG=$root$lib/bin/pg_config
}

# Put the built extension where private_postgres() loads it from.
install_extension()
{
	make -C "${1:-$ACME_ROOT}" -s install NO_BRIDGE=1 PG_CONFIG="$PG_CONFIG"
}
