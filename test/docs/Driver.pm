# Runs python, js and java blocks of a page with Debian's drivers: psycopg 3, node-postgres, JDBC.
#
#   my $drivers = Driver->new($stage, $folder);
#   my ($ok, $out, $err) = $drivers->run($block, PGHOST => ..., PGUSER => ...);
#
# A block is a program of its own: what the page's block "setup" of its language holds comes
# before it, and js may use await. A java block is a class with main(), or statements in which
# c and connection are a Connection.
package Driver;

use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils qw(slurp_file);

use constant {
	PYTHON   => '/usr/bin/python3',
	JDBC     => '/usr/share/java/postgresql.jar',
	NODE_PG  => 'usr/share/nodejs',
	LANGUAGE => { python => 'run_python', js => 'run_js', java => 'run_java' }
};

sub new
{
	my ($class, $stage, $folder) = @_;
	my @node = grep { -d } "$stage/test/env/node/@{[NODE_PG]}", '/' . NODE_PG;
	return bless { folder => $folder, node_path => join(':', @node), setup => {} }, $class;
}

sub speaks { my ($self, $language) = @_; return exists LANGUAGE->{$language}; }

# Another page: what its blocks set up.
sub turn_page { my ($self) = @_; $self->{setup} = {}; return; }

sub run
{
	my ($self, $block, %env) = @_;
	my $method = LANGUAGE->{ $block->{language} } or die "no driver for $block->{language}\n";
	my $text = ($self->{setup}{ $block->{language} } // '') . $block->{text};

	$self->{setup}{ $block->{language} } = $text if $block->{mark} eq 'setup';
	local @ENV{ keys %env } = values %env;
	return $self->$method($text);
}

sub command
{
	my ($self, @command) = @_;
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout(120));
	return ($ok, $out, $err);
}

sub write_file
{
	my ($self, $name, $text) = @_;
	my $path = "$self->{folder}/$name";
	open(my $file, '>', $path) or die "$path: $!\n";
	print $file $text;
	close $file;
	return $path;
}

sub run_python
{
	my ($self, $text) = @_;
	local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
	return $self->command(PYTHON, '-W', 'error', $self->write_file('block.py', $text));
}

# What a block leaves open does not keep it from ending.
sub run_js
{
	my ($self, $text) = @_;
	local $ENV{NODE_PATH} = $self->{node_path};
	return $self->command('node', $self->write_file('block.js', <<"JS"));
(async () => {
$text
})().then(() => process.exit(0), error => { console.error(error); process.exit(1); });
JS
}

sub run_java
{
	my ($self, $text) = @_;
	my $url = "jdbc:postgresql://127.0.0.1:$ENV{PGPORT}/$ENV{PGDATABASE}?user=$ENV{PGUSER}";
	$text = <<"JAVA" if $text !~ /\bstatic void main\b/;
import java.sql.*;
import java.time.*;
import java.util.*;

class Block {
	public static void main(String[] args) throws Exception {
		Connection c = DriverManager.getConnection("$url"), connection = c;
		$text
	}
}
JAVA
	local $ENV{JDBC_URL} = $url;
	return $self->command('java', '-cp', JDBC, '-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC',
		$self->write_file('Block.java', $text));
}

1;
