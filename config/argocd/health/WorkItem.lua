-- Health of a WorkItem, like that of a Job: Progressing until it ends. The phase decides, because an item has no condition Ready.
local status = obj.status or {}
if status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "the controller has not observed this generation yet"}
end
local health = {
  Pending = "Progressing",
  Blocked = "Progressing",
  Scheduled = "Progressing",
  Ready = "Progressing",
  Leased = "Progressing",
  Cancelling = "Progressing",
  Suspended = "Suspended",
  Paused = "Suspended",
  Succeeded = "Healthy",
  Cancelled = "Healthy",
  Rejected = "Degraded",
  Failed = "Degraded",
  DeadLettered = "Degraded",
  Expired = "Degraded",
}
local phase = status.phase
if phase == nil then
  return {status = "Progressing", message = "the item has no phase yet"}
end
if health[phase] == nil then
  return {status = "Unknown", message = "the phase " .. phase .. " is not known: another version of Spillway wrote it"}
end

local message = phase
if status.reason ~= nil and status.reason ~= phase then
  message = message .. ", " .. status.reason
end
for _, condition in ipairs(status.conditions or {}) do
  local says = condition.type == "Failed" or condition.type == "Paused" or condition.type == "PreflightPassed"
  if says and condition.message ~= nil and condition.message ~= "" then
    message = message .. ": " .. condition.message
    break
  end
end
-- A cancelled item did what its spec asks for, unless it was cancelled because of another item.
local asked = status.reason == "CancelRequested" or status.reason == "GroupCancelled"
if phase == "Cancelled" and not asked then
  return {status = "Degraded", message = message}
end
return {status = health[phase], message = message}
