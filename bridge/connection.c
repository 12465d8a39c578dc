/*
 * connection.c
 *		What the configuration says of the connection to the broker, the same for
 *		every command.
 */
#include "connection.h"

#include "log.h"

/* name is what the broker shows; the texts belong to the caller and to config. */
struct broker_settings
connection_settings(const struct config *config, const char *name,
					const char *version)
{
	struct broker_settings settings = {
		.uri = config->uri,
		.tls = config_tls(config),
		.connection_name = name,
		.version = version,
		.connect_timeout = config_number(config, SET_CONNECT_TIMEOUT),
		.heartbeat = config_number(config, SET_HEARTBEAT),
		.reconnect_min = config_number(config, SET_RECONNECT_MIN),
		.reconnect_max = config_number(config, SET_RECONNECT_MAX),
	};

	if (settings.tls.enabled && !settings.tls.verify)
		log_warn("the broker's certificate is not verified: anybody on the way "
				 "can read and change what is sent",
				 LOG_TEXT("setting", "tls-verify = false"));
	return settings;
}
