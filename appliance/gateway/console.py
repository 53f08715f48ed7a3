"""The console: one page without files of its own, that asks /status every two seconds."""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>llm-appliance</title><style>
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem;color:#222;background:#fafafa}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.35rem .8rem .35rem 0;border-bottom:1px solid #ddd}
h1{font-size:1.3rem}h2{font-size:1rem;margin-top:2rem}.bad{color:#b00}.muted{color:#777}
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}th,td{border-color:#333}}
</style></head><body><h1>llm-appliance <span id="state" class="muted"></span></h1>
<p id="line" class="muted"></p><div id="notes"></div><h2>Engines</h2><table><thead><tr><th>engine<th>model<th>state
<th>running<th>queued<th>what</tr></thead><tbody id="engines"></tbody></table>
<h2>Problems</h2><div id="problems" class="muted">none</div><script>
const cell=(row,text,bad)=>{const td=row.insertCell();td.textContent=text??"-";if(bad)td.className="bad"};
async function show(){try{const s=await (await fetch("status")).json();
document.getElementById("state").textContent=s.state;
document.getElementById("line").textContent=`${s.versions.appliance}, vLLM ${s.versions.vllm??"not installed yet"}; `+
`${s.gateway.running} running, ${s.gateway.queued} queued, ${s.gateway.tokens_per_second} tok/s`;
document.getElementById("notes").textContent=s.keys.hint?`No key exists yet: ${s.keys.hint}`:
(s.runtime&&s.runtime.phase!=="complete"?`Runtime: ${s.runtime.message||s.runtime.phase}`:"");
const body=document.getElementById("engines");body.replaceChildren();
for(const e of s.engines)for(const r of e.replicas){const row=body.insertRow();cell(row,r.name);
cell(row,e.served_names.join(", "));cell(row,r.state,r.state==="held"||r.state==="failed");
cell(row,`${r.in_flight} of ${r.limit}`);cell(row,e.queued);cell(row,r.reason||r.message)}
const list=s.config.problems.map(p=>`${p.file??""}${p.line?":"+p.line:""} ${p.key}: ${p.message}`);
const box=document.getElementById("problems");box.textContent=list.join("\\n")||"none";box.style.whiteSpace="pre-line";
box.className=list.length?"bad":"muted"}catch(error){document.getElementById("state").textContent="no answer"}}
show();setInterval(show,2000);
</script></body></html>
"""
