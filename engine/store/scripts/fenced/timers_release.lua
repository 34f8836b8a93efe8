-- Release a timer partition: who takes it over next need not wait.
-- KEYS: epoch, owner   ARGV: epoch   Returns {'OK'}. Idempotent.
redis.call('DEL', KEYS[2])
return {'OK'}
