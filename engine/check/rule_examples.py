"""For each rule the smallest stream that breaks it, and what breaks in clients when it is broken.

A stream is drawn as a line. `created#0` is `response.created` with sequence number 0; `added[1]` adds the item with
output index 1; `d("x")` is a text delta; `fc(c1)` a function call with id c1, from added to done; `rd` is
`response.done`; `=>` is what the client sends; `{…}` is a hook. A `!` stands before what is wrong.
"""

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[str, str]]] = {
    # --- framing
    "T1": (
        '!event: a / data: {"type":"b"}',
        "parsers dispatch by one of the two names, so some miss the event",
    ),
    "T2": (
        "created#0 !response.resumed#1",
        "strict clients fail on a type they do not know, or wait for another",
    ),
    # --- the life of a response
    "R1": ("!added[0]#0 created#1", "SDKs build their snapshot from the first event, and raise on any other"),
    "R2": ("created#0 added[0]#1 !in_progress#2", "a client starts over, and forgets or doubles what it has"),
    "R3": ("created#0 added[0]#1 d('x')#2 !end", "the client waits for its time-out, then repeats the turn"),
    "R4": ('!completed{status:"incomplete"}', "half an answer is taken for a whole one"),
    "R5": ("created{id:a} !completed{id:b}", "the next turn names a response that the server does not know"),
    "R6": ("created#0 error#1 !completed#2", "one client sees a failure, the other a success"),
    "R7": ("=>create !end", "a request that is never answered costs the client its whole time-out"),
    "R8": (
        "{sampler_stop length} !completed",
        "a cut answer, or cut arguments of a tool, pass for whole ones",
    ),
    # --- numbers
    "N1": ("d('x')#4 !d('y')#6", "who resumes by number loses or repeats an event"),
    "N2": ("added[0] !added[0]", "SDKs append on added, so every later event lands in another item"),
    "N3": ("added[0] !part(content_index:1)", "SDKs index a list with it, and raise"),
    # --- items
    "I1": ("created#0 !d('x')#1", "there is no item to add the text to: an error, or lost text"),
    "I2": ("added{m1} !d(item_id:m2)", "clients that go by id lose the text, or show two items"),
    "I3": (
        "!added{reasoning without summary}",
        "the item does not parse, and is skipped with all its deltas",
    ),
    "I4": ("added(fc) arguments.done !completed", "the call is never run: clients act on item done"),
    "I5": ("added{name:f} !arguments.done{name:null}", "the tool is run twice, or under no name"),
    "I6": ("done[0] done[1] !completed{output:[1,0]}", "the stored turn is not the one that was shown"),
    "I7": ("fc(c1) !fc(c1)", "an output answers the wrong call"),
    "I8": ("done[0] !d('x')", "the client starts the item anew and shows its last character only"),
    "I9": ("added[0] !added[1] done[0]", "clients with one current item mix the two"),
    "I10": (
        "=>create[fc without its reasoning] !created",
        "the model reads a call without the thought behind it",
    ),
    # --- content
    "C1": ("added[0] !d('x')", "the delta names a part that is not there: SDKs raise"),
    "C2": ("part d('x') !done[0]", "the part is never closed, and clients that wait for it hang"),
    "C3": ("d('Hel') d('lo') !done('Help')", "what was shown and what is stored differ"),
    "C4": (
        "added(reasoning) !part(output_text)",
        "thoughts are shown as the answer, or the item fails to parse",
    ),
    "C5": ("added(fc) !arguments.done('{\"a\":1}')", "clients that add deltas up run the tool with nothing"),
    "C6": (
        "added(fc) arguments.delta !done[0]",
        "clients that wait for the arguments' end never run the tool",
    ),
    "C8": ("summary.part d('x') !done[0]", "the summary, built from its parts, stays open or empty"),
    "C9": (
        "part part.done !annotation.added",
        "a citation points into text that was already stored without it",
    ),
    "C10": (
        "!d('\\ud83d') d('\\ude00')",
        "half a character becomes a question mark, or the JSON does not parse",
    ),
    "C11": ("!d('<tool') d('_call>')", "the tool call is shown as text, and never run"),
    # --- usage
    "U1": (
        "!completed{usage:{cached_tokens:null}}",
        "the last event does not parse, so the client repeats the turn",
    ),
    "U2": ("rd{output:5} !completed{output:9 of 4}", "clients add segments up: tokens are counted twice"),
    "U3": ("=>create completed(a) {usage_record b} !end", "a turn is not billed, or another one twice"),
    "U4": (
        "completed{cached:64} =>create !completed{cached:16}",
        "the cache was lost, and nobody was told why",
    ),
    # --- WebSocket
    "W1": ("=>create =>create created(a) !created(b)", "events without ids cannot be told apart"),
    "W2": ("created{stream_id:A} !d('x'){}", "the event is shown in another conversation"),
    "W3": ("completed(a)#9 !created(b)#10", "clients take the first number for a gap"),
    "W4": ("completed(a) =>create{prev:a} !not_found", "the conversation breaks between two turns"),
    "W5": (
        "=>create{prev:a} failed =>create{prev:a} !created",
        "the turn continues from a state nobody knows",
    ),
    "W6": ("c1: completed(a)  c2: =>create{prev:a} !created", "one user reads what another one said"),
    "W7": ("=>create{generate:false} !added[0]", "a warm-up is billed and answered as a turn"),
    "W8": ("=>create created(new) !d(old)", "old text runs into the new answer"),
    "W9": (
        "d('x') !{connection_close server}",
        "the answer is cut, and the client cannot tell it from an error",
    ),
    "W10": ("{connection_open} =>create !end", "the fastest clients are the ones that get no answer"),
    "W11": ("append: 'yes'  !http: 'no'", "the forms cannot be compared, so none can replace another"),
    "W12": (
        "=>create{prev:a, other lane} failed =>create{prev:a} !not_found",
        "a failed attempt ends another lane",
    ),
    "W13": (
        "fc(c1) completed =>create{no output of c1} !created",
        "the model reads a call that nobody answered",
    ),
    "W14": ("=>create{no prev} !{context inherited:[resp_1]}", "a fresh conversation knows an older one"),
    "W15": ("=>steer accepted incomplete{steered} !end", "what the user said is lost"),
    # --- suspension
    "S1": ("added(fc) !rd done(fc)", "the client is asked for an output of a call it has not seen whole"),
    "S2": ("fc(c1) rd !completed", "the client sends its output to a response that is over"),
    "S3": ("fc(c1) rd !d('x')", "the model went on without the output it asked for"),
    "S4": (
        "fc(c1) =>{c1,c9} refused =>{c1} !refused",
        "half a batch was kept: neither side knows what is in",
    ),
    "S5": ("fc(c1) =>custom_output(c1) !accepted", "the model reads an output of another kind of tool"),
    "S6": ("fc(c1) fc(c2) rd =>{c1} !added[2]", "the model goes on with an output missing"),
    "S7": ("fc(c1) =>{c1} =>{c1} !accepted", "a repeated send changes what the model read"),
    "S8": ("completed =>inject{c1} !inject.created", "the output is taken and never used"),
    "S10": (
        "{pre_inference} !{pre_inference} {post_inference}",
        "admission and billing run twice for one rollout",
    ),
    "S11": (
        "fc(c1) fc(c2) !{resume outputs:[c2,c1]}",
        "two runs that differ in timing only sample other tokens",
    ),
    "S12": ("!completed{output:[fc,function_call_output]}", "the next turn holds the output twice"),
    "S13": (
        "fc(c1) rd !nothing, for ever",
        "a client that never comes back holds memory and a slot for ever",
    ),
    "S14": (
        '=>cancel 200{status:"cancelled"} !completed',
        "the caller has told its user that it was stopped",
    ),
    "S15": ("{attach starting_after:4} !#6", "the reader misses an event and cannot know it"),
    "S16": (
        "{connection_close} !{sampler_step} 20 s later",
        "tokens are sampled, and paid for, that nobody reads",
    ),
    "S17": ("{attach c1} {attach c2} c1=>{c1} !accepted", "two clients answer one call"),
    "S19": ("=>inject(a, call of b) !accepted", "one rollout reads another one's output"),
    "S20": ("=>inject{c1} !end", "clients match answers by order: one missing shifts all that follow"),
    "S21": (
        "{sampler_stop max_rounds} !completed",
        "a rollout that was stopped passes for one that was done",
    ),
    "S22": ("fc(c1) !rd{output:[]}", "a client that replaces its items by that list loses the call"),
    "S23": ("{suspend} {resume} !{resume}", "the model was started twice on one context"),
    "S24": (
        "fc(c1) rd =>{c1} !no_response_in_progress",
        "the fastest clients are told that they are too early",
    ),
    "S25": ("=>inject{c1} … completed !inject.failed", "what should steer a response waits until it is over"),
    # --- durability and resources
    "D1": ("{accepted c1} {crash} !{recovered pending:[c1]}", "an output that was taken is asked for again"),
    "D2": ("!#5 without {journal 5}", "after a crash the number comes back with another event"),
    "L1": ("completed !{slot_release} 4 s later", "finished responses keep others waiting"),
    "L2": ("!{buffer bytes:9 limit:8}", "one slow reader takes the memory of all"),
}
"""Rule id: example, and why it matters."""
