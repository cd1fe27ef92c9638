package agenthook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// belongs reports whether the conversation of an event has begun in the mount at root. An agent that has begun
// elsewhere and has changed into the mount may have the contents of other projects in its conversation.
func belongs(e Event, home, root string, inside func(dir string) bool) bool {
	f, err := disk.OpenRegular(e.File, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	if e.Agent == Gemini { // the first line has a hash of its working directory
		var head geminiHead
		err := json.NewDecoder(io.LimitReader(f, maxMemoryLine)).Decode(&head)
		return err == nil && head.Hash == geminiHash(e.Dir) && inside(e.Dir)
	}
	dir := firstDir(io.LimitReader(f, maxMemoryLine))
	if dir == "" { // the first lines of claude may name no directory
		return e.Agent == Claude && filepath.Base(home) == slug(root)
	}
	return inside(dir)
}

// continues reports whether the file, below home, has the conversation that the state describes, so that the session
// has its beginning. Codex offers a conversation in all directories, and goes on in the file that it has.
func (s *stored) continues(home, file string) bool {
	name, err := filepath.Rel(home, file)
	m := s.Files[name]
	if err != nil || !s.Here || m.Offset == 0 {
		return false
	}
	f, err := disk.OpenRegular(file, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	return err == nil && m.Offset <= info.Size() && m.Sum == lastSum(f, m.Offset)
}

// firstDir returns the first working directory that lines of claude or codex name; "" if they name none.
func firstDir(r io.Reader) string {
	for d := json.NewDecoder(r); ; {
		var v struct {
			Dir     string          `json:"cwd"`
			Payload json.RawMessage `json:"payload"`
		}
		if d.Decode(&v) != nil {
			return ""
		}
		var p struct {
			Dir string `json:"cwd"`
		}
		_ = json.Unmarshal(v.Payload, &p) // claude has none, and codex not always an object
		if dir := cmp.Or(v.Dir, p.Dir); dir != "" {
			return dir
		}
	}
}

// memoryHome returns the directory to which the names of memoryNames are relative, and the conversation, of the file in
// which an agent stores a conversation. It returns "" if the file is another one.
func memoryHome(a Agent, file string) (home, conversation string) {
	home = filepath.Dir(file)
	if a == Codex {
		home = filepath.Dir(filepath.Dir(filepath.Dir(home)))
	}
	name, err := filepath.Rel(home, file)
	if err != nil || !filepath.IsAbs(file) || memoryNames[a] == nil {
		return "", ""
	}
	if conversation = conversationOf(a, name); conversation == "" {
		return "", ""
	}
	return home, conversation
}

// conversationOf returns the conversation of a file in the memory of an agent; "" if the agent has no such file.
func conversationOf(a Agent, name string) string {
	m := memoryNames[a]().FindStringSubmatch(name)
	if m == nil {
		return ""
	}
	return strings.Join(m[1:], "") // only one group has matched
}

// memoryFilesIn returns the names of the files of the conversation of an event, the file of the event first.
func memoryFilesIn(home, conversation string, e Event) []string {
	first, _ := filepath.Rel(home, e.File)
	names, dirs := []string{first}, []string(nil)
	switch e.Agent {
	case Claude:
		dirs = []string{conversation + "/subagents", conversation + "/tool-results"}
	case Gemini:
		dirs = []string{filepath.Base(e.Session)} // sub-agents
	}
	for _, dir := range dirs {
		files, _ := os.ReadDir(filepath.Join(home, dir)) // there is often none
		for _, f := range files {
			if name := dir + "/" + f.Name(); f.Type().IsRegular() && conversationOf(e.Agent, name) == conversation {
				names = append(names, name)
			}
		}
	}
	return names
}

// redactFile returns the text of a file that is stored as a whole, without secrets. JSON, or each line of JSON, that
// has secrets by the names of its members becomes compact.
func redactFile(text []byte) []byte {
	text = bytes.ToValidUTF8(text, []byte("\uFFFD"))
	if clean, secrets, err := transcript.RedactJSON(text); err == nil && secrets > 0 {
		text = clean
	} else if err != nil {
		var lines []byte
		for line := range bytes.Lines(text) {
			if clean, secrets, err := transcript.RedactJSON(line); err == nil && secrets > 0 {
				line = append(clean, '\n')
			}
			lines = append(lines, line...)
		}
		text = lines
	}
	clean, _ := transcript.Redact(string(text))
	return []byte(clean)
}

// agentHome returns the directory to which the names of memoryNames are relative, for an agent that runs in dir.
func agentHome(a Agent, dir string) (string, error) {
	variable, name := "CLAUDE_CONFIG_DIR", ".claude"
	switch a {
	case Codex:
		variable, name = "CODEX_HOME", ".codex"
	case Gemini:
		variable, name = "GEMINI_CLI_HOME", "" // the directory that has .gemini
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
	switch {
	case err != nil:
		return "", err
	case a == Codex:
		return filepath.Join(home, "sessions"), nil
	case a == Gemini:
		return geminiChats(filepath.Join(home, ".gemini"), dir)
	}
	return filepath.Join(home, "projects", slug(dir)), nil
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
