package checkout_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	. "github.com/artifactfs/artifactfs/host/checkout"
)

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func intents(j *Journal) (list []Intent) {
	for _, p := range j.Pending() {
		list = append(list, p.Intent)
	}
	return list
}

// TestJournalOutlivesItsProcess checks that intents are stored in order until they end, even if the process is killed.
// The file exists as long as there is an intent.
func TestJournalOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	j := OpenJournal(home)
	first, second := Intent{Switch: &SwitchIntent{Ref: "main"}},
		Intent{Restore: &RestoreIntent{Checkpoint: "a", Before: "b", Paths: []string{"d"}, Staged: true, Nonce: "n"}}
	one, err := j.Begin(first)
	if err != nil {
		t.Fatal(err)
	}
	two, err := j.Begin(second)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := intents(OpenJournal(home)), []Intent{first, second}; !reflect.DeepEqual(got, want) {
		t.Errorf("after two intents began: got %+v, want %+v", got, want)
	}
	for _, p := range []*Pending{one, one} { // the second call has no effect
		if err := p.End(); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := intents(OpenJournal(home)), []Intent{second}; !reflect.DeepEqual(got, want) {
		t.Errorf("after the first ended: got %+v, want %+v", got, want)
	}
	if err := two.End(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) != 0 {
		t.Errorf("after both ended: got %v, %v, want no files", entries, err)
	}
}

// TestJournalReportsWhatItCannotRead checks that a file that cannot be read is returned as an intent with an error,
// which can only be ended.
func TestJournalReportsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"version":1,"intents":[{}]}`, "{", "[]"} {
		home := t.TempDir()
		write(t, home, "checkout.json", text)
		j := OpenJournal(home)
		list := j.Pending()
		if len(list) != 1 || list[0].Err == nil {
			t.Errorf("%s: got %+v, want one intent with an error", text, list)
			continue
		}
		if _, err := j.Begin(Intent{Switch: &SwitchIntent{Ref: "main"}}); err != nil {
			t.Error(err)
		}
		if err := list[0].End(); err != nil {
			t.Error(err)
		}
		if got := intents(OpenJournal(home)); len(got) != 1 || got[0].Switch == nil {
			t.Errorf("%s: after it ended: got %+v, want the new switch alone", text, got)
		}
	}
	home := t.TempDir()
	write(t, home, "checkout.json", `{"version":2,"intents":[{"switch":{"ref":"main"}}]}`)
	if list := OpenJournal(home).Pending(); len(list) != 1 || list[0].Err == nil || list[0].Switch != nil {
		t.Errorf("a journal of a later version: got %+v, want an error", list)
	}
}

// FuzzJournal checks that every intent that is read without an error from an arbitrary file can be written and read
// again.
func FuzzJournal(f *testing.F) {
	for _, seed := range []string{`{"version":1,"intents":[{"switch":{"ref":"main","forward":"0123"}}]}`,
		`{"version":1,"intents":[{"restore":{"checkpoint":"a","before":"b","paths":["x"]}},{"switch":{"ref":""}}]}`,
		`{"version":1,"intents":null}`, `{`, ``} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		home := t.TempDir()
		write(t, home, "checkout.json", text)
		for _, p := range OpenJournal(home).Pending() {
			if p.Err != nil {
				continue
			}
			other := t.TempDir()
			if _, err := OpenJournal(other).Begin(p.Intent); err != nil {
				t.Fatal(err)
			}
			again := OpenJournal(other).Pending()
			if len(again) != 1 || again[0].Err != nil {
				t.Fatalf("%+v read again: got %+v", p.Intent, again)
			}
			before, err1 := json.Marshal(p.Intent)
			after, err2 := json.Marshal(again[0].Intent)
			if err1 != nil || err2 != nil || string(before) != string(after) {
				t.Errorf("%s read again: got %s", before, after)
			}
		}
	})
}
