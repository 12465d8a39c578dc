#ifndef ACME_SIGNALS_H
#define ACME_SIGNALS_H

#include <stdbool.h>

void		signals_setup(void);
int			signals_fd(void);
void		signals_read(void);
bool		signals_stop_requested(void);
bool		signals_take_reload(void);

#endif							/* ACME_SIGNALS_H */
