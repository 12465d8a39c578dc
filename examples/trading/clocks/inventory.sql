-- What a timer calls for inventory, as inventory_app: gives back what was held too long.
CALL inventory.expire_holds() \watch 1
