-- The newest entries of a quarantine, their records cut.
-- KEYS: quarantine   ARGV: entries, bytes of a record that are wanted, bytes of records after which there are no more entries
-- Returns {'OK', {{id, origin, bytes of the record, its first bytes}, ...}}.
local found, upto, left = {}, '+', tonumber(ARGV[3])
while #found < tonumber(ARGV[1]) and left > 0 do
  local entry = redis.call('XREVRANGE', KEYS[1], upto, '-', 'COUNT', 1)[1]
  if not entry then break end
  local fields = {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  local blob = fields['blob'] or ''
  found[#found + 1] = {entry[1], fields['where'] or '', #blob, string.sub(blob, 1, tonumber(ARGV[2]))}
  left = left - #blob
  upto = '(' .. entry[1]
end
return {'OK', found}
