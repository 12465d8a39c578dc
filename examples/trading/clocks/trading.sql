-- What a timer calls for trading, as trading_app: gives up sagas whose caller is gone.
CALL trading.release_overdue_sagas() \watch 1
