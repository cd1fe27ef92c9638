package agenthook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/lazy"
)

// Remembered is a conversation in the memory of a session.
type Remembered struct {
	Agent   Agent
	ID      string // as in the names of its files
	Partial bool   // whether lines are missing: they were left out, erased or expired
	session string // name that the agent knows
	title   string
	last    int // index of its newest record
	files   map[string]*rememberedFile
}

// rememberedFile is a file of a conversation.
type rememberedFile struct {
	agent Agent
	name  string
	lines [][]byte
	// partial is whether lines are missing between the lines, or before them.
	partial bool
	writer  string                    // writer of the newest record
	seen    map[string]bool           // lines that were added, by writer, offset and hash
	ends    map[string]int64          // offset of the end of the newest line of each writer
	parts   map[string]map[int]string // parts of long lines, by the hash of the line
}

// Remember returns the conversations that the records contain, which must be sorted by time: the conversation that was
// continued last is the last one. It skips everything that
// SendMemory cannot have written: a session remote is not trusted.
func Remember(records []json.RawMessage) []*Remembered {
	all := map[string]*Remembered{}
	var order []*Remembered
	for i, record := range records {
		var r memoryRecord
		if json.Unmarshal(record, &r) != nil || r.Type != "memory" || memoryNames[r.Agent] == nil {
			continue
		}
		id := conversationOf(r.Agent, r.File)
		if id == "" {
			continue
		}
		c := all[id]
		if c == nil {
			c = &Remembered{Agent: r.Agent, ID: id, session: id, files: map[string]*rememberedFile{}}
			all[id] = c
			order = append(order, c)
		}
		if c.Agent != r.Agent {
			continue
		}
		c.last = i
		if r.Agent == Gemini && conversationOf(Gemini, r.Session+"/x.jsonl") == id {
			c.session = r.Session
		}
		if c.files[r.File] == nil {
			c.files[r.File] = newRememberedFile(r.Agent, r.File)
		}
		if f := c.files[r.File]; !f.add(r) {
			f.partial, c.Partial = true, true
		}
	}
	for _, c := range order {
		c.describe()
	}
	slices.SortFunc(order, func(a, b *Remembered) int { return cmp.Compare(a.last, b.last) })
	return slices.DeleteFunc(order, func(c *Remembered) bool { return c.main() == nil })
}

func newRememberedFile(a Agent, name string) *rememberedFile {
	return &rememberedFile{agent: a, name: name, seen: map[string]bool{}, ends: map[string]int64{},
		parts: map[string]map[int]string{}}
}

// add adds a line to the file. It returns false if the line was left out, or if lines before it are missing.
func (f *rememberedFile) add(r memoryRecord) bool {
	f.writer = r.Writer
	text, whole := unescape(r.Line), true
	if r.Parts > 0 {
		text, whole = f.join(r)
		if !whole {
			return true // other parts follow
		}
	}
	// A hook that was killed has not stored how far it had come, so the next one has stored the same lines again.
	key := r.Writer + " " + strconv.FormatInt(r.Offset, 10) + " " + sumOf(text)
	if f.seen[key] {
		return true
	}
	if r.Offset == 0 { // the agent has written another file, or it is not known any more what was stored
		f.lines, f.partial = nil, false
		clear(f.ends)
		clear(f.seen)
	}
	f.seen[key] = true
	end, known := f.ends[r.Writer]
	gap := known && r.Offset > end || len(f.ends) == 0 && r.Offset > 0
	f.ends[r.Writer] = r.Offset + r.Size
	if !appended(f.name) {
		f.lines = [][]byte{text}
		return true
	}
	var line bytes.Buffer
	if json.Compact(&line, text) != nil {
		return false
	}
	f.lines = append(f.lines, unescape(line.Bytes()))
	return !gap
}

// join adds a part of a long text, and returns the text when it is complete.
func (f *rememberedFile) join(r memoryRecord) (text []byte, whole bool) {
	if r.Part < 0 || r.Part >= r.Parts || r.Parts > 2*maxMemoryLine/maxPiece {
		return nil, false
	}
	key := fmt.Sprint(r.Writer, " ", r.Offset, " ", r.Sum, " ", r.Parts)
	if f.parts[key] == nil {
		f.parts[key] = map[int]string{}
	}
	f.parts[key][r.Part] = r.Text
	if len(f.parts[key]) < r.Parts {
		return nil, false
	}
	for i := range r.Parts {
		text = append(text, f.parts[key][i]...)
	}
	delete(f.parts, key)
	return text, sumOf(text) == r.Sum
}

// main returns the file with the conversation itself, or nil if it has no lines.
func (c *Remembered) main() *rememberedFile {
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		isMain := c.Agent == Codex || name == c.ID+".jsonl" || strings.HasPrefix(name, geminiPrefix)
		if isMain && len(c.files[name].lines) > 0 {
			return c.files[name]
		}
	}
	return nil
}

// describe finds the title of the conversation, and completes a conversation of gemini.
func (c *Remembered) describe() {
	f := c.main()
	if f == nil {
		return
	}
	if c.Agent == Gemini {
		f.lines = withGeminiHead(f.lines, c.session)
	}
	for _, l := range f.lines {
		var v struct {
			Type    string          `json:"type"`
			Message message         `json:"message"`
			Payload json.RawMessage `json:"payload"`
			Content json.RawMessage `json:"content"`
		}
		if json.Unmarshal(l, &v) != nil {
			continue
		}
		var p message
		_ = json.Unmarshal(v.Payload, &p) // claude has none, and codex not always an object
		text := ""
		switch {
		case v.Type == "user" && c.Agent == Gemini:
			text = firstPart(v.Content)
		case v.Type == "user":
			_ = json.Unmarshal(v.Message.Content, &text) // the result of a tool is a list
		case p.Type == "message" && p.Role == "user":
			text = firstPart(p.Content)
		}
		// What the agents themselves add begins with a tag, or with the heading of a file with instructions.
		if text = firstLine(text); c.title == "" && !strings.HasPrefix(text, "<") && !strings.HasPrefix(text, "# ") {
			c.title = cut(text, 80)
		}
	}
}

// firstPart returns the text of the first of several parts.
func firstPart(content json.RawMessage) string {
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(content, &parts) != nil || len(parts) == 0 {
		return ""
	}
	return parts[0].Text
}

// Outcome is what Place has done with a conversation.
type Outcome string

const (
	MemoryPlaced  Outcome = "placed"   // the files did not exist
	MemoryUpdated Outcome = "extended" // the files had the beginning of the conversation
	MemoryCurrent Outcome = "current"  // the files had the whole conversation
	MemoryNewer   Outcome = "newer"    // the file of this host is longer or different, and was kept
)

// Placed describes a conversation that was placed for an agent on this host.
type Placed struct {
	Agent        Agent   `json:"agent"`
	Conversation string  `json:"conversation"`
	Outcome      Outcome `json:"outcome"`
	Title        string  `json:"title,omitempty"` // beginning of the first prompt
	Dir          string  `json:"dir"`             // directory in which the agent continues the conversation
	File         string  `json:"file"`
	Partial      bool    `json:"partial,omitempty"` // whether lines are missing
	// Diverged is whether the hooks store no more of the conversation, because this host has another version of it.
	Diverged bool `json:"diverged,omitempty"`
}

// Command returns the command that continues the conversation in the directory Dir.
func (p Placed) Command() []string {
	if p.Agent == Codex {
		return []string{"codex", "resume", p.Conversation, "-C", p.Dir}
	}
	return []string{string(p.Agent), "--resume", p.Conversation}
}

// Place writes the files of the conversation to the place at which the agent of this user looks for them if it runs in
// the root of a mount. All working directories in the conversation are replaced by root: the session remote is not
// trusted, and the conversation must not appear in another project of the user. A file of this host that is longer or
// different is not changed. gitDir is the git directory of the mount: SendMemory does not store the lines again that
// are in the memory already. inside reports whether a directory is in the mount.
func (c *Remembered) Place(root, gitDir string, inside func(dir string) bool) (p Placed, err error) {
	p = Placed{Agent: c.Agent, Conversation: c.session, Title: c.title, Dir: root, Partial: c.Partial}
	home, err := agentHome(c.Agent, root)
	if err != nil {
		return p, err
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		return p, err
	}
	in, err := os.OpenRoot(home)
	if err != nil {
		return p, err
	}
	defer in.Close()
	unlock, err := disk.Lock(filepath.Join(gitDir, memoryDir, "lock"))
	if err != nil {
		return p, err
	}
	defer unlock()
	s, err := loadStored(gitDir, c.Agent, c.ID)
	if err != nil {
		return p, err
	}
	s.Bytes, s.Diverged = 0, false
	to := target{in: in, root: root, inside: inside, state: s}
	// The conversation itself is placed last, so that it is complete as soon as the agent finds it.
	main := c.main()
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		if name == main.name {
			continue
		}
		if _, err := to.place(c.files[name]); err != nil {
			return p, fmt.Errorf("write %s: %w", filepath.Join(home, name), err)
		}
	}
	p.File = filepath.Join(home, main.name)
	if p.Outcome, err = to.place(main); err != nil {
		return p, fmt.Errorf("write %s: %w", p.File, err)
	}
	_, stored := main.ends[s.Writer]
	p.Diverged, s.Here = s.Diverged, stored || p.Outcome != MemoryNewer
	return p, s.save()
}

// dirMembers matches, for each agent, the names of the members that contain a working directory.
var dirMembers = map[Agent]func() *regexp.Regexp{
	Claude: lazy.Regexp(`"(cwd)":`),
	Codex:  lazy.Regexp(`"(cwd)":`),
	Gemini: lazy.Regexp(`"(projectHash|directories)":`),
}

// editDirs returns compact JSON in which all members that contain a working directory of the agent have the directory
// dir.
func (a Agent) editDirs(text []byte, dir string) []byte {
	values := map[string]any{"cwd": dir, "projectHash": geminiHash(dir), "directories": []string{dir}}
	var out []byte
	for {
		// Inside of a string, the quotes of a member have backslashes.
		at := dirMembers[a]().FindSubmatchIndex(text)
		if at == nil {
			return append(out, text...)
		}
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(values[string(text[at[2]:at[3]])]) // all of them can be encoded
		out, text = append(out, text[:at[1]]...), text[at[1]:]
		d := json.NewDecoder(bytes.NewReader(text))
		var old json.RawMessage
		if d.Decode(&old) != nil || old[0] != b.Bytes()[0] {
			continue // a value of another type
		}
		out, text = append(out, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...), text[d.InputOffset():]
	}
}

// unescape returns JSON without the escape sequences that encoding/json writes for characters that need none. The
// requests and replies between a command and the daemon add them, and the files of the agents have none.
func unescape(text []byte) []byte {
	if !bytes.Contains(text, []byte(`\u`)) {
		return text
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			out = append(out, text[i])
			continue
		}
		if c, ok := needless[strings.ToLower(string(text[i:min(i+6, len(text))]))]; ok {
			out, i = append(out, c...), i+5
			continue
		}
		out, i = append(out, text[i], text[i+1]), i+1
	}
	return out
}

// needless maps escape sequences to the characters that they stand for. The letters are for editDirs.
var needless = func() map[string]string {
	all := map[string]string{}
	for _, c := range "<>&\u2028\u2029ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" {
		all[fmt.Sprintf(`\u%04x`, c)] = string(c)
	}
	return all
}()
