package agenthook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf16"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// Remembered is a conversation in the memory of a session.
type Remembered struct {
	Agent   Agent
	ID      string
	Partial bool // whether lines are missing: they were left out, erased or expired
	dir     string
	root    string
	title   string
	files   map[string]*rememberedFile
}

// rememberedFile is a file of a conversation.
type rememberedFile struct {
	name  string
	lines []memoryText
	seen  map[string]bool           // lines that were added, by writer, offset and hash
	ends  map[string]int64          // offset of the end of the newest line of each writer
	parts map[string]map[int]string // parts of long lines, by the hash of the line
}

type memoryText struct {
	text []byte
	root string // root of the mount in which the line was written
}

// Remember returns the conversations that the records contain, which must be sorted by time. It skips everything that
// SendMemory cannot have written: a session remote is not trusted.
func Remember(records []json.RawMessage) []*Remembered {
	all := map[string]*Remembered{}
	shared := map[string]*rememberedFile{} // files that belong to no conversation
	var order []*Remembered
	for _, record := range records {
		var r memoryRecord
		if json.Unmarshal(record, &r) != nil || r.Type != "memory" || memoryNames[r.Agent] == nil ||
			!filepath.IsAbs(r.Root) {
			continue
		}
		m := memoryNames[r.Agent].FindStringSubmatch(r.File)
		if m == nil {
			continue
		}
		key, id := string(r.Agent)+" "+r.File, m[1]
		if id == "" {
			if shared[key] == nil {
				shared[key] = newRememberedFile(r.File)
			}
			shared[key].add(r)
			continue
		}
		c := all[id]
		if c == nil {
			c = &Remembered{Agent: r.Agent, ID: id, files: map[string]*rememberedFile{}}
			all[id] = c
			order = append(order, c)
		}
		if c.Agent != r.Agent {
			continue
		}
		if c.files[r.File] == nil {
			c.files[r.File] = newRememberedFile(r.File)
		}
		if !c.files[r.File].add(r) {
			c.Partial = true
		}
	}
	for _, c := range order {
		c.describe()
		for key, f := range shared {
			if strings.HasPrefix(key, string(c.Agent)+" ") {
				c.files[f.name] = f
			}
		}
	}
	return slices.DeleteFunc(order, func(c *Remembered) bool { return c.main() == nil })
}

func newRememberedFile(name string) *rememberedFile {
	return &rememberedFile{name: name, seen: map[string]bool{}, ends: map[string]int64{},
		parts: map[string]map[int]string{}}
}

// add adds a line to the file. It returns false if the line was left out, or if lines before it are missing.
func (f *rememberedFile) add(r memoryRecord) bool {
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
		f.lines = nil
		clear(f.ends)
		clear(f.seen)
	}
	f.seen[key] = true
	end, known := f.ends[r.Writer]
	gap := known && r.Offset > end || len(f.ends) == 0 && r.Offset > 0
	f.ends[r.Writer] = r.Offset + r.Size
	if !appended(f.name) {
		f.lines = []memoryText{{text, r.Root}}
		return true
	}
	if !json.Valid(text) || bytes.ContainsRune(text, '\n') {
		return false
	}
	f.lines = append(f.lines, memoryText{text, r.Root})
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
	for name, f := range c.files {
		if (c.Agent == Codex || name == c.ID+".jsonl") && len(f.lines) > 0 && appended(name) {
			return f
		}
	}
	return nil
}

// describe finds the working directory and the title of the conversation.
func (c *Remembered) describe() {
	f := c.main()
	if f == nil {
		return
	}
	c.root = f.lines[0].root
	for _, l := range f.lines {
		var v struct {
			Type    string          `json:"type"`
			Dir     string          `json:"cwd"`
			Message message         `json:"message"`
			Payload json.RawMessage `json:"payload"`
		}
		if json.Unmarshal(l.text, &v) != nil {
			continue
		}
		var p struct {
			Dir string `json:"cwd"`
			message
		}
		_ = json.Unmarshal(v.Payload, &p) // claude has none, and codex not always an object
		if dir := cmp.Or(v.Dir, p.Dir); c.dir == "" && dir != "" {
			c.dir, c.root = dir, l.root
		}
		text := ""
		if v.Type == "user" {
			_ = json.Unmarshal(v.Message.Content, &text) // the result of a tool is a list
		} else if p.Type == "message" && p.Role == "user" {
			var parts []struct {
				Text string `json:"text"`
			}
			_ = json.Unmarshal(p.Content, &parts)
			if len(parts) > 0 {
				text = parts[0].Text
			}
		}
		// What the agents themselves add begins with a tag, or with the heading of a file with instructions.
		if text = firstLine(text); c.title == "" && !strings.HasPrefix(text, "<") && !strings.HasPrefix(text, "# ") {
			c.title = cut(text, 80)
		}
	}
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
}

// Command returns the command that continues the conversation in the directory Dir.
func (p Placed) Command() []string {
	if p.Agent == Codex {
		return []string{"codex", "resume", p.Conversation, "-C", p.Dir}
	}
	return []string{string(p.Agent), "--resume", p.Conversation}
}

// Place writes the files of the conversation to the place at which the agent of this user looks for them if it runs in
// the mount at root. Working directories below the root of the mount in which the conversation was made are replaced by
// those below root. A file of this host that is longer or different is not changed. gitDir is the git directory of the
// mount: SendMemory does not store the lines again that are in the memory already.
func (c *Remembered) Place(root, gitDir string) (p Placed, err error) {
	p = Placed{Agent: c.Agent, Conversation: c.ID, Title: c.title, Dir: root, Partial: c.Partial}
	if dir, below := moved(c.dir, c.root, root); below {
		p.Dir = dir
	}
	home, err := agentHome(c.Agent, p.Dir)
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
	s, err := loadStored(gitDir, c.Agent, c.ID)
	if err != nil {
		return p, err
	}
	s.Bytes = 0
	// The conversation itself is placed last, so that it is complete as soon as the agent finds it.
	main := c.main()
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		if name == main.name {
			continue
		}
		if _, err := c.placeFile(in, c.files[name], root, s); err != nil {
			return p, fmt.Errorf("write %s: %w", filepath.Join(home, name), err)
		}
	}
	p.File = filepath.Join(home, main.name)
	if p.Outcome, err = c.placeFile(in, main, root, s); err != nil {
		return p, fmt.Errorf("write %s: %w", p.File, err)
	}
	return p, s.save()
}

// agentHome returns the directory to which the names of memoryNames are relative, for an agent that runs in dir.
func agentHome(a Agent, dir string) (string, error) {
	variable, name := "CLAUDE_CONFIG_DIR", ".claude"
	if a == Codex {
		variable, name = "CODEX_HOME", ".codex"
	}
	home := os.Getenv(variable)
	if home == "" {
		user, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		home = filepath.Join(user, name)
	}
	home, err := filepath.Abs(home)
	if a == Codex {
		return filepath.Join(home, "sessions"), err
	}
	return filepath.Join(home, "projects", slug(dir)), err
}

// slug returns the name that claude gives to the directory with the conversations of a working directory. Claude counts
// characters in UTF-16.
func slug(dir string) string {
	const most = 200
	units := utf16.Encode([]rune(dir))
	hash, name := int32(0), make([]byte, len(units))
	for i, u := range units {
		hash = hash<<5 - hash + int32(u)
		if name[i] = '-'; u >= '0' && u <= '9' || u >= 'A' && u <= 'Z' || u >= 'a' && u <= 'z' {
			name[i] = byte(u)
		}
	}
	if len(name) <= most {
		return string(name)
	}
	return string(name[:most]) + "-" + strconv.FormatInt(int64(math.Abs(float64(hash))), 36)
}

// moved returns the path dir after the directory from was moved to the directory to. If dir is not below from, it
// returns dir and false.
func moved(dir, from, to string) (string, bool) {
	if dir == from {
		return to, true
	}
	if rest, ok := strings.CutPrefix(dir, from+"/"); ok && filepath.IsLocal(rest) {
		return path.Join(to, rest), true
	}
	return dir, false
}

// placeFile writes one file of the conversation, and adds to s what of it is stored.
func (c *Remembered) placeFile(in *os.Root, f *rememberedFile, root string, s *stored) (Outcome, error) {
	var there []byte
	file, err := in.OpenFile(f.name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		there, err = readAtMost(file, 4*maxMemoryConversation)
		file.Close()
	}
	exists := err == nil
	if err := missingIsFine(err); err != nil {
		return "", err
	}
	text, outcome := []byte(nil), MemoryPlaced
	shared := int64(0) // size of the part of the file that is stored
	if appended(f.name) {
		var same int
		if same, shared = f.common(there); exists {
			switch whole := shared == int64(len(there)); {
			case same == len(f.lines) && whole:
				outcome = MemoryCurrent
			case whole:
				outcome = MemoryUpdated
			case same == len(f.lines):
				outcome = MemoryNewer
			default:
				// What the two have in common is stored, and the rest of this host belongs to another history.
				outcome, shared = MemoryNewer, int64(len(there))
			}
		}
		if outcome == MemoryPlaced || outcome == MemoryUpdated {
			text = append(text, there...)
			for _, l := range f.lines[same:] {
				text = append(text, editDirs(l.text, func(dir string) string {
					dir, _ = moved(dir, l.root, root)
					return dir
				})...)
				text = append(text, '\n')
			}
			shared = int64(len(text))
		}
	} else if outcome = MemoryNewer; !exists && len(f.lines) > 0 {
		text, outcome = f.lines[0].text, MemoryPlaced
	}
	m := mark{Offset: shared}
	if outcome == MemoryPlaced || outcome == MemoryUpdated {
		if err := writeIn(in, f.name, text); err != nil {
			return "", err
		}
		there = text
	}
	if appended(f.name) {
		m.Sum = lastSum(bytes.NewReader(there), shared)
	} else {
		m = mark{Offset: int64(len(there)), Sum: sumOf(there)}
	}
	s.Files[f.name], s.Bytes = m, s.Bytes+m.Offset
	return outcome, nil
}

func readAtMost(f *os.File, limit int64) ([]byte, error) {
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, errors.New("not a regular file"))
	}
	return disk.ReadLimited(f, limit)
}

// common returns the number of lines at the beginning of text that are those of the file, apart from secrets and from
// working directories, and the size of these lines.
func (f *rememberedFile) common(text []byte) (lines int, size int64) {
	for _, l := range f.lines {
		line, rest, ok := bytes.Cut(text, []byte("\n"))
		if !ok {
			break
		}
		none := func(string) string { return "" }
		clean, _, err := transcript.RedactJSON(line)
		if err != nil || !bytes.Equal(editDirs(unescape(clean), none), editDirs(l.text, none)) {
			break
		}
		lines, size, text = lines+1, size+int64(len(line))+1, rest
	}
	return lines, size
}

// editDirs returns compact JSON in which the function edit has replaced the strings of all members named cwd.
func editDirs(text []byte, edit func(dir string) string) []byte {
	const member = `"cwd":`
	var out []byte
	for {
		at := bytes.Index(text, []byte(member))
		// Inside of a string, the quotes of a member have backslashes.
		if at < 0 {
			return append(out, text...)
		}
		out, text = append(out, text[:at+len(member)]...), text[at+len(member):]
		d := json.NewDecoder(bytes.NewReader(text))
		var dir string
		if len(text) == 0 || text[0] != '"' || d.Decode(&dir) != nil {
			continue
		}
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(edit(dir)) // every string can be encoded
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
		if c, ok := needless[string(text[i:min(i+6, len(text))])]; ok {
			out, i = append(out, c...), i+5
			continue
		}
		out, i = append(out, text[i], text[i+1]), i+1
	}
	return out
}

// needless maps escape sequences to the characters that they stand for.
var needless = map[string]string{`\u003c`: "<", `\u003e`: ">", `\u0026`: "&", `\u2028`: "\u2028", `\u2029`: "\u2029"}

// writeIn writes a file as a whole, readable only for the user.
func writeIn(in *os.Root, name string, text []byte) error {
	if err := in.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	temp := name + ".artifactfs"
	if err := in.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := in.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, bytes.NewReader(text))
	if err = errors.Join(err, f.Close()); err == nil {
		err = in.Rename(temp, name)
	}
	if err != nil {
		_ = in.Remove(temp)
	}
	return err
}
