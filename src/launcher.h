/*
 * launcher.h
 *		Starts one worker per database that has the extension.
 */
#ifndef ACME_OUTBOX_LAUNCHER_H
#define ACME_OUTBOX_LAUNCHER_H

extern void launcher_register(void);
extern PGDLLEXPORT void acme_outbox_launcher_main(Datum main_arg);

#endif							/* ACME_OUTBOX_LAUNCHER_H */
