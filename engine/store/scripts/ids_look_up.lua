-- What is stored of ids.   KEYS: as accepted_ids.lua   ARGV: ttl ms, then as accepted_ids.lua   Returns {'OK', what `ids_known` returns}.
ids_open(1, 2, tonumber(ARGV[1]))
return {'OK', ids_known()}
