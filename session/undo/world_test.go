package undo

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// tree has the contents of files by path. An empty directory has a path that ends with a slash.
type tree map[string]string

// world is a session in memory whose checkpoints and records are made as the daemon and the hooks make them.
type world struct {
	*testing.T
	files   tree
	points  []control.Checkpoint // newest last
	trees   map[string]tree
	records []control.TranscriptRecord
	now     time.Time
	turns   int
	head    string
	open    map[string]bool // ids of the calls that are running
}

func newWorld(t *testing.T, files tree) *world {
	return &world{T: t, files: files, trees: map[string]tree{}, now: time.Unix(1_700_000_000, 0), head: "c0",
		open: map[string]bool{}}
}

// checkpoint makes a checkpoint, unless nothing has changed and the message is that of the newest one or empty.
func (w *world) checkpoint(message string) string {
	w.now = w.now.Add(time.Second)
	if n := len(w.points); n > 0 {
		last := w.points[n-1]
		same := maps.Equal(w.trees[last.ID], w.files) && last.Head == w.head
		if same && (message == "" || message == last.Message) {
			return last.ID
		}
	}
	text, err := json.Marshal(w.files)
	if err != nil {
		w.Fatal(err)
	}
	id := fmt.Sprintf("P%04d", len(w.trees))
	w.trees[id] = maps.Clone(w.files)
	w.points = append(w.points, control.Checkpoint{ID: id, Time: w.now, Message: message, Tree: string(text), Head: w.head,
		Branch: "main"})
	return id
}

// record appends a record of an agent. who is AGENT/CONVERSATION, and members are further members as JSON.
func (w *world) record(kind, who, members string) {
	agent, session, _ := strings.Cut(who, "/")
	w.append(fmt.Sprintf(`{"type":%q,"agent":%q,"agent_session":%q%s}`, kind, agent, session, members))
}

func (w *world) append(line string) {
	w.now = w.now.Add(time.Second)
	if strings.Contains(line, `"type":"prompt"`) {
		w.turns++
	}
	r := control.TranscriptRecord{ID: fmt.Sprintf("R%04d", len(w.records)), Time: w.now, Turn: w.turns,
		Begins: strings.Contains(line, `"type":"prompt"`), Record: json.RawMessage(line)}
	if n := len(w.points); n > 0 {
		r.Checkpoint = w.points[n-1].ID
	}
	w.records = append(w.records, r)
}

func (w *world) prompt(who string) {
	w.checkpoint("")
	w.record("prompt", who, `,"text":"do it"`)
}

func (w *world) response(who string) {
	w.record("response", who, `,"checkpoint":"`+w.checkpoint("end of turn")+`"`)
}

// begin starts a call of the tool Bash with the id, and end ends it.
func (w *world) begin(who, id string) {
	w.open[id] = true
	w.record("tool_call", who, fmt.Sprintf(`,"tool":"Bash","call":%q,"checkpoint":%q,"input":{"command":"run %s"}`, id,
		w.checkpoint("before "+id), id))
}

func (w *world) end(who, id string) {
	delete(w.open, id)
	w.record("tool_result", who, fmt.Sprintf(`,"tool":"Bash","call":%q,"checkpoint":%q`, id, w.checkpoint("")))
}

// call runs a call that makes a change.
func (w *world) call(who, id string, change func()) {
	w.begin(who, id)
	change()
	w.end(who, id)
}

// write writes a file, in place of a file above it or of a directory with its name.
func (w *world) write(path, text string) {
	maps.DeleteFunc(w.files, func(other, _ string) bool {
		return strings.HasPrefix(other, path+"/") || strings.HasPrefix(path, strings.TrimSuffix(other, "/")+"/")
	})
	w.files[path] = text
}

// remove removes a file or an empty directory. The directory above it stays, even if it is empty then.
func (w *world) remove(path string) {
	n := len(w.files)
	delete(w.files, path)
	delete(w.files, path+"/")
	i := strings.LastIndexByte(path, '/')
	if n == len(w.files) || i < 0 {
		return
	}
	for other := range w.files {
		if strings.HasPrefix(other, path[:i+1]) {
			return
		}
	}
	w.files[path[:i+1]] = ""
}

// history returns the history of the session, with a checkpoint of the present files.
func (w *world) history() *history {
	w.checkpoint("")
	log := slices.Clone(w.points)
	slices.Reverse(log)
	return newHistory(w.records, log)
}
