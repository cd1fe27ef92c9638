package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// The records of sub-agents are nested in the turn, and can be printed alone.
func TestTranscriptNestsSubAgents(t *testing.T) {
	a, s := newAfs(t), &sessionsOf{}
	for i, text := range []string{
		`{"type":"prompt","role":"user","text":"Fix it"}`,
		`{"type":"subagent_start","role":"system","sub":"a1b2c3d4e5f6","sub_type":"Explore"}`,
		`{"type":"tool_call","role":"assistant","tool":"Bash","input":{"command":"ls"},"sub":"a1b2c3d4e5f6","sub_type":"Explore"}`,
		`{"type":"subagent_prompt","role":"system","text":"Find\nit","sub":"\u001b7"}`,
		`{"type":"subagent_end","role":"system","text":"Found","sub":"a1b2c3d4e5f6","sub_type":"Explore"}`,
	} {
		s.records = append(s.records, control.TranscriptRecord{ID: string(rune('a' + i)), Actor: "me", Turn: 1, Begins: i == 0,
			Time: time.Date(2026, 1, 2, 3, 4, i, 0, time.UTC), Record: json.RawMessage(text)})
	}
	f := newFakeDaemon(mountStatus(a.dir + "/m"))
	f.fakeSessions = s
	serve(t, control.DaemonSocket(a.state), f)
	at := func(i int) string { return s.records[i].Time.Local().Format(time.DateTime) }
	explore := "  " + at(1) + "  me  Explore d4e5f6: subagent_start  a1b2c3d4e5f6\n" +
		"  " + at(2) + `  me  Explore d4e5f6: tool_call  Bash {"command":"ls"}` + "\n"
	end := "  " + at(4) + "  me  Explore d4e5f6: subagent_end  Found\n"
	want := "== turn 1, checkpoint -\n" + at(0) + "  me  prompt  Fix it\n" + explore +
		"  " + at(3) + "  me  7: subagent_prompt  Find\n      it\n" + end
	if got := a.ok("session", "transcript", "m"); got != want {
		t.Errorf("transcript: got\n%s\nwant\n%s", got, want)
	}
	if got := a.ok("session", "transcript", "m", "--sub", "e5f6"); got != explore+end {
		t.Errorf("transcript of a sub-agent: got\n%s\nwant\n%s", got, explore+end)
	}
	if got := a.ok("session", "transcript", "m", "--sub", "a1b2c3d4e5f6", "--json"); strings.Count(got, "\n") != 3 {
		t.Errorf("transcript of a sub-agent as JSON: got\n%s", got)
	}
	if got := a.ok("session", "transcript", "m", "--markdown"); !strings.Contains(got,
		"\n#### Sub-agent Explore d4e5f6\n\n**Explore d4e5f6: subagent_start**, me, ") {
		t.Errorf("transcript in Markdown: got\n%s", got)
	}
}
