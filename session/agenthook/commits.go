package agenthook

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Turn is the state that one event of an agent's conversation leaves for the next event. A separate process handles
// each event, so the state is stored in the git directory as artifactfs-hooks/CONVERSATION.json until the conversation
// ends or the hooks are uninstalled. CONVERSATION is a hash of the conversation's name.
type Turn struct {
	Prompt string `json:"prompt"` // prompt that began the turn, shortened and with secrets removed
	Reflog int64  `json:"reflog"` // number of bytes of logs/HEAD that were searched for commits

	// The fields below are missing in files of older versions. The modification time of the file is the time of the
	// conversation's newest event.
	Agent        Agent   `json:"agent,omitempty"`
	Conversation string  `json:"conversation,omitempty"` // name of the conversation, shortened
	Process      process `json:"process"`                // process of the agent
	Compacted    int64   `json:"compacted,omitempty"`    // offset in the agent's file up to which texts are recorded
}

// hooksDir is the directory in which hooks store their state, relative to the git directory: the turns, and which
// events were received (firedDir).
const hooksDir = "artifactfs-hooks"

// turnFile returns the path of the file that stores the state of a conversation. The file is named by a hash, because
// agents may use any string as the name of a conversation.
func turnFile(gitDir, conversation string) string {
	sum := sha256.Sum256([]byte(conversation))
	return filepath.Join(gitDir, hooksDir, hex.EncodeToString(sum[:8])+".json")
}

// LoadTurn returns the stored state of a conversation. If no state is stored, known is false and the field Reflog of
// the result is the present size of the reflog, because the commits in the reflog were not made in this conversation.
func LoadTurn(gitDir, conversation string) (t Turn, known bool, err error) {
	text, err := disk.ReadRegular(turnFile(gitDir, conversation), maxTurn)
	if err == nil && json.Unmarshal(text, &t) == nil {
		return t, true, nil
	}
	if err := missingIsFine(err); err != nil {
		return Turn{}, false, err
	}
	info, err := os.Stat(filepath.Join(gitDir, "logs", "HEAD"))
	if err != nil {
		return Turn{}, false, missingIsFine(err)
	}
	return Turn{Reflog: info.Size()}, false, nil
}

// Save stores the Turn for the next event of the conversation.
func (t Turn) Save(gitDir, conversation string) error {
	file := turnFile(gitDir, conversation)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return disk.WriteFile(file, text, 0o600)
}

// ForgetTurn removes the stored state of a conversation.
func ForgetTurn(gitDir, conversation string) error {
	err := os.RemoveAll(receivedDir(gitDir, conversation))
	return errors.Join(err, missingIsFine(os.Remove(turnFile(gitDir, conversation))))
}

// ForgetAll removes everything that hooks have stored in the git directory.
func ForgetAll(gitDir string) error {
	return os.RemoveAll(filepath.Join(gitDir, hooksDir))
}

// missingIsFine returns nil if err means that a file does not exist. Otherwise it returns err.
func missingIsFine(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// maxReflog is the maximum number of bytes of the reflog that one event reads. The next event reads the rest.
const maxReflog = 1 << 20

// commitPrefixes lists the prefixes of the reflog messages that git writes when it creates a commit. A message with
// another prefix means that HEAD was set to an existing commit.
var commitPrefixes = []string{"commit:", "commit (", "cherry-pick", "revert", "merge ", "rebase (pick)",
	"rebase (squash)",
	"rebase (fixup)", "rebase (reword)", "rebase (edit)", "rebase (continue)", "rebase: ", "am:"}

// Commits returns the commits that were made in the git directory since the previous call, oldest first. It reads the
// reflog of HEAD from the offset t.Reflog, and then adds the number of bytes that were read to t.Reflog. Fast-forward
// merges are skipped, because they create no commit.
func (t *Turn) Commits(gitDir string) ([]string, error) {
	f, err := disk.OpenRegular(filepath.Join(gitDir, "logs", "HEAD"), 0)
	if err != nil {
		return nil, missingIsFine(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if info.Size() < t.Reflog { // the reflog was expired or replaced, so the position is invalid
		t.Reflog = info.Size()
		return nil, nil
	}
	text, err := io.ReadAll(io.NewSectionReader(f, t.Reflog, maxReflog))
	if err != nil {
		return nil, err
	}
	// Git may still be writing the last line. Leave an incomplete line to the next event.
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	t.Reflog += int64(len(text))
	var made []string
	for line := range strings.Lines(string(text)) {
		ids, message, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		words := strings.Fields(ids)
		// A reflog line is "OLD NEW NAME <MAIL> TIME ZONE", a tab, and the message.
		if !ok || len(words) < 2 || words[0] == words[1] || strings.HasSuffix(message, ": Fast-forward") {
			continue
		}
		for _, prefix := range commitPrefixes {
			if strings.HasPrefix(message, prefix) {
				made = append(made, words[1])
				break
			}
		}
	}
	return made, nil
}
