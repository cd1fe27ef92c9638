package records

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// writerEnv is the environment variable that makes a process the one that TestKilledWriter kills. Its value is the URL
// of the database.
const writerEnv = "RECORDS_TEST_WRITER"

// writeInALoop pushes to a repository from several goroutines, so that transactions are committed in groups, until the
// process is killed. It prints the name of each ref after the push was acknowledged.
func writeInALoop() {
	ctx := context.Background()
	db, err := Open(ctx, os.Getenv(writerEnv))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for range 3 {
		go writePushes(ctx, db)
	}
	writePushes(ctx, db)
}

func writePushes(ctx context.Context, db *DB) {
	for i := 0; ; i++ {
		pack := Pack{ID: NewID(), Hash: oid(i), Extensions: []string{".pack"}}
		name := "refs/heads/" + pack.ID
		err := db.Packs.Begin(ctx, pack)
		if err == nil {
			_, err = db.Repos.Push(ctx, Push{RepoID: "killed", Pack: &pack, Updates: []RefUpdate{{name, zeros, oid(i)}},
				Cause:  Cause{Actor: "writer"},
				Events: func([]RefUpdate) []Event { return []Event{{Type: name, Body: []byte("{}")}} }})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(name)
	}
}

// TestKilledWriter kills a process that pushes in a loop. Every acknowledged push must be stored completely, and no
// push may be stored in part.
func TestKilledWriter(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			var url string
			if kind == "sqlite" {
				url = "sqlite:" + filepath.Join(t.TempDir(), "records.db")
			} else {
				url = newPostgres(t)
			}
			first := open(t, url)
			do(t, first.Repos.Create(t.Context(), Creation{Repo: Repo{ID: "killed", Namespace: "ns", Name: "r"}}))
			do(t, first.Close())
			acknowledged := map[string]bool{}
			for round := range 8 {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), writerEnv+"="+url)
				cmd.Stderr = os.Stderr
				out, err := cmd.StdoutPipe()
				do(t, err)
				do(t, cmd.Start())
				lines := bufio.NewScanner(out)
				for n := 0; lines.Scan(); n++ {
					acknowledged[lines.Text()] = true
					if n == 5*round {
						do(t, cmd.Process.Kill())
					}
				}
				cmd.Wait()
			}
			if kind == "postgres" {
				// PostgreSQL may still run the last statements of a client that was killed.
				server, err := postgres()
				do(t, err)
				await.Until(t, "the server has ended the connections", func() bool {
					n, err := server.Query("postgres", "select count(*) from pg_stat_activity where application_name = 'artifactfs'")
					do(t, err)
					return n == "0"
				})
			}
			db := open(t, url)
			s, err := db.Repos.Snapshot(t.Context(), "killed")
			do(t, err)
			refs := map[string]bool{}
			for _, r := range s.Refs {
				refs[r.Name] = true
			}
			for name := range acknowledged {
				if !refs[name] {
					t.Errorf("ref %s was acknowledged and is missing", name)
				}
			}
			events, err := db.Events.After(t.Context(), 0, "", "", 10000)
			do(t, err)
			for _, e := range events {
				if !refs[e.Type] {
					t.Errorf("event of ref %s, which is missing", e.Type)
				}
			}
			if n := len(refs); len(s.Packs) != n || len(events) != n || rows(t, db, "audit") != n ||
				s.Repo.Generation != int64(n+1) {
				t.Errorf("%d refs, %d packs, %d events, %d audit entries, generation %d", n, len(s.Packs), len(events),
					rows(t, db, "audit"), s.Repo.Generation)
			}
			t.Logf("%d pushes were acknowledged, %d are there", len(acknowledged), len(refs))
			if kind == "sqlite" {
				integrity(t, db)
			}
		})
	}
}

// integrity makes SQLite check the integrity of the file, and fails the test if it finds an error.
func integrity(t testing.TB, db *DB) {
	t.Helper()
	var result string
	do(t, db.reader.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&result))
	if !strings.EqualFold(result, "ok") {
		t.Errorf("integrity check: %s", result)
	}
}
