/*
 * jsontext.h
 *		JSON that arrives as text.
 */
#ifndef ACME_OUTBOX_JSONTEXT_H
#define ACME_OUTBOX_JSONTEXT_H

#include "utils/jsonb.h"

extern Jsonb *jsontext_parse(text *bytes);
extern Jsonb *jsontext_arg(FunctionCallInfo fcinfo, int i, bool is_jsonb, bool *invalid);
extern bool jsontext_quietly(Datum (*parse) (Datum argument), Datum argument, Datum *result);

#endif							/* ACME_OUTBOX_JSONTEXT_H */
