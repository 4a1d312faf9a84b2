-- Health of a Grant. A Grant whose time is over is Healthy, because there is nothing left to do for it.
local status = obj.status or {}
if status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "the controller has not observed this generation yet"}
end
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  if condition.type ~= nil then
    conditions[condition.type] = condition
  end
end
local function has(type, value)
  return conditions[type] ~= nil and conditions[type].status == value
end
local function verdict(health, condition)
  local reason = condition.reason or condition.type
  if condition.message == nil or condition.message == "" then
    return {status = health, message = reason}
  end
  return {status = health, message = reason .. ": " .. condition.message}
end
if conditions.Applied == nil then
  return {status = "Unknown", message = "the status has no condition Applied, so another version of Spillway wrote it"}
end
if has("Expired", "True") then
  return verdict("Healthy", conditions.Expired)
end
if has("Applied", "True") then
  return verdict("Healthy", conditions.Applied)
end
if conditions.Applied.reason == "NotPermitted" then
  return verdict("Degraded", conditions.Applied)
end
return verdict("Progressing", conditions.Applied)
