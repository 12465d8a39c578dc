#!/usr/bin/python3
"""Many tenants at once through few server connections.

  pooler_clients.py TENANTS ROUNDS

One connection for each tenant, all found through libpq's environment. Each round has two
transactions for the tenant, one of them rolled back, and looks before and after them that
nothing of another tenant, or of its own last transaction, is to be seen. Prints what is wrong,
and at last which server processes each tenant had: TENANT PID...
"""
import json
import sys
import threading
import uuid

import psycopg
from psycopg.types.json import Jsonb

NOTHING = (None, "", "")
CONTEXT = ("SELECT acme_outbox.tenant(), current_setting('acme_outbox.traceparent'),"
           " current_setting('acme_outbox.locale')")
WITHOUT_TENANT = (
    ("SELECT acme_outbox.idempotency_begin('POST /x', %s, '{}')", "none"),
    ("SELECT acme_outbox.park_message('pooled', %s, 'INVALID_STATE')", '{"header": {"eventId": "none"}}'),
    ("SELECT acme_outbox.inbox_process('pooled', %s, 'svc.parks')", '{"header": {"eventId": "none"}}'),
    ("SELECT count(*), %s FROM svc.parked_message", "a row"),
    ("SELECT count(*), %s FROM svc.idempotency_key", "a row"),
    ("SELECT acme_outbox.idempotency_abandon('POST /x', %s)", "none"),
    ("SELECT acme_outbox.idempotency_complete('POST /x', %s, 200)", "none"),
)


class Undone(Exception):
    pass


class Client:
    def __init__(self, number, rounds):
        self.tenant = f"tenant-{number}"
        self.trace = f"{number + 1:032x}"
        self.parent = f"00-{self.trace}-00f067aa0ba902b7-01"
        self.locale = f"l{number}"
        self.rounds = rounds
        self.pids = set()
        self.wrong = []
        self.conn = psycopg.connect(prepare_threshold=None, autocommit=True)

    def value(self, sql, *arguments):
        return self.conn.execute(sql, arguments).fetchone()[0]

    def expect(self, what, found, expected):
        if found != expected:
            self.wrong.append(f"{self.tenant}: {what}: {found!r}, not {expected!r}")

    def envelope(self, event_id, **payload):
        return json.dumps({"header": {"eventId": event_id},
                           "body": {"eventName": "Pooled", "payload": {"tenant": self.tenant, **payload}}})

    def enter(self):
        self.pids.add(self.value("SELECT pg_backend_pid()"))
        self.expect("a transaction begins", self.conn.execute(CONTEXT).fetchone(), NOTHING)
        self.conn.execute("SELECT acme_outbox.context(%s, %s, %s)", (self.tenant, self.parent, self.locale))
        self.expect("its context", self.conn.execute(CONTEXT).fetchone(),
                    (self.tenant, self.parent, self.locale))

    def work(self, n):
        """Every call of a consumer, in one transaction."""
        ids = [f"{self.tenant}-{n}-{i}" for i in range(6)]
        key, response = f"key-{n}", {"tenant": self.tenant}
        self.expect("accept", self.value("SELECT acme_outbox.inbox_accept('pooled', %s)", ids[0]), True)
        self.conn.execute("SELECT acme_outbox.inbox_record('pooled', %s)", (uuid.uuid4(),))
        self.expect("attempt", self.value("SELECT attempts FROM acme_outbox.inbox_attempt('pooled', %s)", ids[0]), 1)
        self.expect("process", self.value("SELECT acme_outbox.inbox_process('pooled', %s, 'svc.publishes', %s)",
                    self.envelope(ids[1], n=n), json.dumps({"queue": self.tenant})), "applied")
        self.expect("park", self.value("SELECT acme_outbox.inbox_process('pooled', %s, 'svc.parks')",
                    self.envelope(ids[2])), "parked")
        self.expect("try", self.value("SELECT outcome FROM acme_outbox.inbox_try_process('pooled', %s, 'svc.fails')",
                    self.envelope(ids[3])), "failed")
        self.expect("batch", self.value("SELECT string_agg(outcome, ' ') FROM acme_outbox.inbox_try_process_batch("
                    "'pooled', %s, 'svc.fails')", [self.envelope(ids[4], fine=True), self.envelope(ids[4])]),
                    "applied duplicate")
        self.conn.execute("SELECT acme_outbox.park_message('pooled', %s, 'INVALID_STATE')", (self.envelope(ids[5]),))
        # a handler's own settings ended with it
        self.expect("context after handlers", self.conn.execute(CONTEXT).fetchone(),
                    (self.tenant, self.parent, self.locale))
        begin = "SELECT decision, response FROM acme_outbox.idempotency_begin('POST /x', %s, %s)"
        self.expect("begin", self.conn.execute(begin, (key, "{}")).fetchone(), ("execute", None))
        self.conn.execute("SELECT acme_outbox.idempotency_complete('POST /x', %s, 200, %s)", (key, Jsonb(response)))
        self.expect("replay", self.conn.execute(begin, (key, "{}")).fetchone(), ("replay", response))
        self.expect("begin another", self.conn.execute(begin, ("given up", "{}")).fetchone()[0], "execute")
        self.expect("abandon", self.value("SELECT acme_outbox.idempotency_abandon('POST /x', 'given up')"), True)
        self.expect("project", self.value("SELECT acme_outbox.project('svc.deal', %s, %s, clock_timestamp())",
                    Jsonb({"id": f"{self.tenant}-{n}"}), Jsonb({"tenant": self.tenant})), True)
        self.expect("project_delete", self.value("SELECT acme_outbox.project_delete('svc.deal', %s, clock_timestamp())",
                    Jsonb({"id": f"{self.tenant}-gone"})), True)
        self.conn.execute("SELECT acme_outbox.publish('e', 'k', %s, 'Pooled', %s)",
                          (self.tenant, Jsonb({"tenant": self.tenant})))
        self.expect("parked rows seen", self.value(
            "SELECT string_agg(DISTINCT payload #>> '{body,payload,tenant}', ' ') FROM svc.parked_message"), self.tenant)
        self.expect("message() outside", self.value("SELECT acme_outbox.message()"), None)

    def closed_without_tenant(self):
        for sql, argument in WITHOUT_TENANT:
            try:
                with self.conn.transaction():
                    self.conn.execute(sql, (argument,))
                self.wrong.append(f"{self.tenant}: without a tenant it worked: {sql}")
            except psycopg.Error as error:
                self.expect(sql, error.sqlstate, "OX207")

    def run(self):
        try:
            for n in range(self.rounds):
                self.expect("a statement alone", self.conn.execute(CONTEXT).fetchone(), NOTHING)
                with self.conn.transaction():
                    self.enter()
                    self.work(n)
                self.closed_without_tenant()
                try:
                    with self.conn.transaction():
                        self.enter()
                        self.work(f"undone-{n}")
                        raise Undone
                except Undone:
                    pass
        except Exception as error:      # whatever it is, the test must see it
            self.wrong.append(f"{self.tenant}: {type(error).__name__}: {error}")


def main():
    tenants, rounds = int(sys.argv[1]), int(sys.argv[2])
    clients = [Client(number, rounds) for number in range(tenants)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        print("\n".join(client.wrong[:5]), end="\n" if client.wrong else "")
    for client in clients:
        print(client.tenant, *sorted(client.pids))


main()
