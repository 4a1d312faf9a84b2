#!/bin/sh
# The scheduler of the samples: takes what people ask in words (`kubectl spillway ask "..."`), queues it as items of work for
# other pools, and prints what becomes of them. It understands no language: what it does is splitting and looking for words,
# and it stands where a model would. It runs all the time (agent.run: LongRunning) and needs a shell and awk, nothing else.
#
#   a question ("status", "how far are you?", whatever ends with a "?")    queues nothing, and is answered with what there is
#   one task                                                               one item
#   several, on lines of their own, numbered, or between semicolons        one plan: all of its items, or none
#   a task that begins with "then"                                         waits for all tasks before it
#
# A line that is indented further than its task, or stands between two ``` lines, belongs to the task before. What a task is
# about decides its type, and its type decides the queue. All items carry the name of what was asked as their group.
#
# What always holds: words that came from outside are data. They go through files and standard input, never through the
# shell, and into JSON by one function that lets no character out of its string. What was asked twice under one uid (its
# first agent was lost before it could say so) is queued once: the key is the uid's.
set -u
export LC_ALL=C
work=${TMPDIR:-/tmp}/scheduler
mkdir -p "$work" || exit 1
# The type of what no word classifies. A queue must accept it, or be the one that takes what no queue accepts.
export SCHEDULER_TYPE="${SCHEDULER_TYPE:-chore}"

say() { printf '%s\n' "$*"; }

# A shell hears a signal between two commands, and in `wait`: what may take long stands in the background.
pause() { sleep "$1" & wait $!; }

# What became of what we queued, for people who read this log: one line each. Nobody reads on when the one who asks is gone.
listen() {
    while kill -0 $$ 2>/dev/null; do
        spillway inbox --wait 25 > "$work/news" 2> "$work/no-news"
        code=$?
        while IFS= read -r line; do
            name=${line%%: *} rest=${line#*: }
            case $rest in
                finished,*) say "Plan $name finished:${rest#finished,}" ;;
                Succeeded*) say "Done: $name${rest#Succeeded}" ;;
                *) say "Failed: $name: $rest" ;;
            esac
        done < "$work/news"
        # None, for now; or the sidecar is being restarted.
        [ "$code" = 0 ] || sleep 1
    done
}

# Splits the words on standard input. Writes, into the folder `work`: `kind` (question, nothing, or how many tasks), and for
# one task `type` and `task`, for more the `plan`, as JSON.
decompose() {
    awk -v work="$work" -v group="$1" -v key="$2" '
    function trim(text) { sub(/^[ \t\r\n]+/, "", text); sub(/[ \t\r\n]+$/, "", text); return text }
    function indent(text) {
        match(text, /^[ \t]*/)
        text = substr(text, 1, RLENGTH)
        gsub(/\t/, "        ", text)
        return length(text)
    }
    # A task begins; a mark of a list is no part of it.
    function add(text) {
        text = trim(text)
        sub(/^(\(?[0-9]+[.)]|[-*+])[ \t]+/, "", text)
        if (tolower(text) ~ /^(and )?then([ \t,:]|$)/) {
            sub(/^([Aa][Nn][Dd] )?[Tt][Hh][Ee][Nn][ \t,:]*/, "", text)
            waits = n > 0
        }
        if (text == "") return
        if (waits && stage[n] == stages) stages++
        waits = 0
        task[++n] = text
        stage[n] = stages
    }
    # "1. one 2. two" on one line.
    function numbered(text,    next_one, at) {
        if (trim(text) ~ /^\(?1[.)][ \t]/)
            for (next_one = 2; (at = match(text, "[ \t][(]?" next_one "[.)][ \t]")) > 0; next_one++) {
                add(substr(text, 1, at - 1))
                text = substr(text, at)
            }
        add(text)
    }
    function is_question(text) {
        text = tolower(text)
        if (text ~ /^(please|(can|could|would|will) you)[ ,]/) return 0
        if (text ~ /\?[ \t"\047)]*$/) return 1
        if (text ~ /^(the |your |any )?(current )?(status|progress|news)( report| update| please| of .*| for .*| on .*)?[ .!]*$/) return 1
        if (text ~ /^(show|tell|give)( me| us)?( the| your)?( current)? (status|progress)[ .!]*$/) return 1
        return text ~ /^(how (far|many|much|long|is|are|does|do|goes)|what(\047s| is| are| was| did| happened)|where(\047s| is| are)|when (will|is|are|does)|who|why) /
    }
    # The words that it has decide what it is; so does the first one.
    function type_of(text) {
        text = " " tolower(text) " "
        gsub(/[^a-z]+/, " ", text)
        if (text ~ /^ (idea|feature|design|write a prd) /) return "idea"
        if (text ~ / (fix|fixes|fixed|fixing|bugs?|crash|crashes|crashed|crashing|broken|errors?) /) return "bug"
        if (text ~ / (ideas?|features?|designs?|prds?) /) return "idea"
        return ENVIRON["SCHEDULER_TYPE"]
    }
    function quoted(text,    at, one, out) {
        for (at = 1; at <= length(text); at++) {
            one = substr(text, at, 1)
            out = out ((one in escape) ? escape[one] : one)
        }
        return "\"" out "\""
    }
    BEGIN {
        for (code = 1; code < 32; code++) escape[sprintf("%c", code)] = sprintf("\\u%04x", code)
        escape["\""] = "\\\""
        escape["\\"] = "\\\\"
        escape[sprintf("%c", 127)] = "\\u007f"
        stages = 1
    }
    {
        fence = $0 ~ /^[ \t]*```/
        if (open && (fenced || fence || (indent($0) > margin && trim($0) != ""))) {
            task[n] = task[n] "\n" $0
            if (fence) fenced = !fenced
            next
        }
        before = n
        margin = indent($0)
        if (fence) { fenced = 1; add($0) }
        else {
            parts = split($0, part, ";")
            for (at = 1; at <= parts; at++) numbered(part[at])
        }
        open = n > before
    }
    END {
        for (at = 1; at <= n; at++) {
            task[at] = trim(task[at])
            questions += is_question(task[at])
        }
        print (n == 0 ? "nothing" : questions == n ? "question" : n) > (work "/kind")
        if (n == 1) {
            print type_of(task[1]) > (work "/type")
            printf "%s", task[1] > (work "/task")
        }
        file = work "/plan"
        printf "{\"dedupKey\":%s,\"steps\":[", quoted(key) > file
        for (at = 1; at <= n; at++) {
            printf "%s{\"key\":\"%d\",\"after\":[", (at > 1 ? "," : ""), at > file
            for (first = other = 1; other < at; other++) if (stage[other] == stage[at] - 1) {
                printf "%s\"%d\"", (first ? "" : ","), other > file
                first = 0
            }
            printf "],\"item\":{\"type\":%s,\"group\":%s,\"notifyOn\":[\"Finished\"],\"payload\":%s}}", quoted(type_of(task[at])), quoted(group), quoted(task[at]) > file
        }
        print "]}" > file
    }'
}

# Runs a command with the file `$1` as its input; again, as long as nobody answers it. What it says is in `said`, and why it
# did not, in `trouble`.
patiently() {
    input=$1 tries=0
    shift
    while :; do
        code=0
        "$@" < "$input" > "$work/said" 2> "$work/trouble" || code=$?
        case $code in
            4) ;;
            3) grep -q 'try again' "$work/trouble" || return 3 ;;
            *) return "$code" ;;
        esac
        tries=$((tries + 1))
        [ "$tries" -lt 5 ] || return 4
        pause 2
    done
}

# Says how what was asked ended; until the sidecar is there to hear it.
conclude() {
    until spillway work "$@"; do
        [ $? = 4 ] || return 0 # it is not ours any more, and somebody else answers
        pause 1
    done
}

# What stood in the way, in Spillway's own words. They are cut, so nothing but ASCII is kept: a character is never cut in two.
refusal() {
    words=$(sed -n 's/^\(refused\|error\): //p' "$work/trouble" | head -n 1 | tr -cd '\040-\176' | cut -c 1-1000)
    say "${words:-it said nothing}"
}

# What there is, from what Spillway knows: how many items of each phase, and those that are not over.
status() {
    head -n 1 "$work/said"
    sed -n -e '1d' -e '/^[^:]*: \(Succeeded\|Failed\|DeadLettered\|Cancelled\|Expired\|Rejected\)/d' \
        -e 's/^\([a-z0-9.-]*: [A-Za-z]*\( ([A-Za-z0-9_]*)\)\{0,1\}\(, [0-9]* before it\)\{0,1\}\).*/\1/p' "$work/said" | head -n 20
}

# Answers what is in `words`, which was asked under the name $1 and the uid $2.
serve() {
    name=$1 key=ask-$2
    if ! decompose "$name" "$key" < "$work/words"; then
        conclude fail --reason NotUnderstood -- "the words could not be split into tasks"
        return
    fi
    kind=$(cat "$work/kind") code=0
    case $kind in
        nothing) : > "$work/said" ;;
        question) patiently /dev/null spillway work list || code=$? ;;
        1)
            type=$(cat "$work/type")
            patiently "$work/task" spillway submit --type "$type" --group "$name" --notify-on Finished --dedup-key "$key" - || code=$?
            ;;
        *) patiently "$work/plan" spillway plan - || code=$? ;;
    esac
    case $code in
        0) ;;
        # Nobody answered: somebody may, later.
        4) conclude release -- "$(refusal)"; return ;;
        *) say "$name: $(refusal)"; conclude fail --reason Refused -- "$(refusal)"; return ;;
    esac
    case $kind in
        nothing) answer="Nothing was asked, so nothing is queued." ;;
        question) answer=$(status) ;;
        1) answer="Queued 1 item. I'll let you know when it's done." ;;
        *) answer="Queued $kind items. I'll let you know when they're done." ;;
    esac
    say "$name: $answer"
    [ "$kind" = question ] || cat "$work/said"
    conclude 'done' -- "$answer"
}

listen &
listener=$!
trap 'kill "$listener" 2>/dev/null; exit 0' TERM INT
say "scheduler: ask me"
while :; do
    spillway work next --wait 25 --json > "$work/item" 2> "$work/trouble" & wait $!
    code=$?
    if [ "$code" != 0 ]; then
        # 3: there is none; or not yet, or not now: then it was said at once.
        pause 1
        continue
    fi
    item=$(cat "$work/item")
    # What stands before the payload is Spillway's own, and has neither quotes nor backslashes in it.
    item=${item%%,\"payload\":*}
    spillway work next --wait 0 > "$work/raw" 2>> "$work/trouble" || continue
    again=$(spillway work next --wait 0 --json 2>> "$work/trouble") || continue
    [ "$item" = "${again%%,\"payload\":*}" ] || continue # that one was taken from us, and there is another
    # No shell, and no awk, can hold the character 0.
    tr -d '\000' < "$work/raw" > "$work/words"
    name=${item#*\"name\":\"} uid=${item#*\"uid\":\"}
    serve "${name%%\"*}" "${uid%%\"*}"
done
