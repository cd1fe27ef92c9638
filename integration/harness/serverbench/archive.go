package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/session"
)

const (
	dormantRepos = 10  // number of repositories with dormant sessions
	dormantMore  = 100 // number of sessions that one request archives
)

// dormant measures the resources that archived sessions need while they are not used: stored bytes, memory, database
// queries and processor time.
func (b *bench) dormant() error {
	alone, err := startOurs(b.ctx, b.ours.program, b.path("dormant"), strings.Fields(b.serve)...)
	if err != nil {
		return err
	}
	defer func() { alone.end() }()
	empty := resident(alone.pid())
	each := max(b.archived/dormantRepos, 1)
	start := time.Now()
	for i := range dormantRepos {
		if err := b.fillSessions(alone, fmt.Sprint("dormant", i), each); err != nil {
			return err
		}
	}
	n := int64(each * dormantRepos)
	b.table.line(fmt.Sprintf("%d sessions of ten files, with a checkpoint and records, in %d repositories: pushed in", n,
		dormantRepos), "", true,
		seconds(time.Since(start)))
	// restart the server, because an ended server leaves no write-ahead log of its database
	if err := alone.again(b.ctx); err != nil {
		return err
	}
	before, err := stored(alone.dir())
	if err != nil {
		return err
	}
	start = time.Now()
	for i := range dormantRepos {
		for from := 0; from < each; from += dormantMore {
			var names []string
			for j := from; j < min(from+dormantMore, each); j++ {
				names = append(names, fmt.Sprint("s", j))
			}
			if r, err := alone.c.Extensions().Archive(b.ctx, space, fmt.Sprint("dormant", i), names...); err != nil ||
				len(r.Failed) > 0 {
				return fmt.Errorf("archive: %w, %v", err, r.Failed)
			}
		}
	}
	took := time.Since(start)
	b.table.line("archive all of them; each", "", true,
		fmt.Sprintf("%s; %s", seconds(took), seconds(took/time.Duration(n))))
	busy := resident(alone.pid())
	if err := alone.again(b.ctx); err != nil {
		return err
	}
	after, err := stored(alone.dir())
	if err != nil {
		return err
	}
	rows := after.bundles - before.bundles
	if rows != n {
		return fmt.Errorf("archive sessions: stored %d bundles for %d sessions", rows, n)
	}
	b.table.line("each archived session in the object store: bytes of the file, blocks on the disk", "", true,
		fmt.Sprintf("%d B, %s", (after.bundleBytes-before.bundleBytes)/n, kib((after.bundleBlocks-before.bundleBlocks)/n)))
	b.table.line("database: with the sessions as refs, with all archived, per archived session", "", true,
		fmt.Sprintf("%s, %s, %d B", mib(before.database), mib(after.database), after.database/n))
	b.table.line("memory of the server: empty, after archiving, started again with the archive", "< "+mib(goalRestMemory),
		max(resident(alone.pid()), busy) < 2*goalRestMemory,
		fmt.Sprintf("%s, %s, %s", mib(empty), mib(busy), mib(resident(alone.pid()))))
	start = time.Now()
	listed := 0
	for _, err := range alone.c.Extensions().Archived(b.ctx, space, "dormant0") {
		if err != nil {
			return err
		}
		if listed++; listed == min(each, 1000) {
			break
		}
	}
	b.table.line(fmt.Sprintf("list the first page of archived sessions (%d)", listed), "", true,
		seconds(time.Since(start)))
	start = time.Now()
	if err := alone.c.Extensions().Reopen(b.ctx, space, "dormant0", "s0", ""); err != nil {
		return err
	}
	b.table.line("reopen one session", "", true, seconds(time.Since(start)))
	return b.idle(alone)
}

// idle measures the server during one minute without requests.
func (b *bench) idle(o *ours) error {
	calls, cpu := databaseCalls(o), processorTime(o.pid())
	select {
	case <-time.After(time.Minute):
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
	b.table.line("a minute without requests: calls of the database, processor time", "", true,
		fmt.Sprintf("%d, %s", databaseCalls(o)-calls, seconds(processorTime(o.pid())-cpu)))
	return nil
}

// databaseCalls returns the number of database calls according to the metrics of a server.
func databaseCalls(o *ours) (n int64) {
	answer, err := http.Get(o.url + "/metrics")
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok &&
			strings.HasPrefix(name, "artifactfs_server_database_duration_seconds_count") {
			var calls float64
			fmt.Sscan(value, &calls)
			n += int64(calls)
		}
	}
	return n
}

// processorTime returns the processor time that a process has used.
func processorTime(pid int) time.Duration {
	text, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var user, system int64
	fmt.Sscan(fields[11], &user)
	fmt.Sscan(fields[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond // the times are in clock ticks of 10 ms
}

// storage holds the sizes of the data that a server stores for sessions.
type storage struct {
	database     int64 // size of the database in bytes
	bundles      int64
	bundleBytes  int64
	bundleBlocks int64 // disk space of the bundles in bytes
}

// stored measures the data directory dir of a server that keeps its database and its objects there.
func stored(dir string) (s storage, err error) {
	info, err := os.Stat(filepath.Join(dir, "records.sqlite"))
	if err != nil {
		return s, err
	}
	s.database = info.Size()
	files, err := filepath.Glob(filepath.Join(dir, "objects", "packs", "*", "*.bundle"))
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return s, err
		}
		s.bundles++
		s.bundleBytes += info.Size()
		s.bundleBlocks += (info.Size() + 4095) &^ 4095
	}
	return s, err
}

// fillSessions creates a repository with a history and with the given number of closed sessions. Each session has a
// commit of ten files, a checkpoint and a transcript.
func (b *bench) fillSessions(o *ours, name string, sessions int) error {
	r, err := o.create(b.ctx, name)
	if err != nil {
		return err
	}
	dir := b.path("source-" + name)
	defer os.RemoveAll(dir)
	if _, err := git(b.ctx, "", remote{}, "clone", "-q", "--bare", b.repos[0], dir); err != nil {
		return err
	}
	var stream bytes.Buffer
	for i := range sessions {
		if err := writeSession(&stream, fmt.Sprint("s", i)); err != nil {
			return err
		}
	}
	cmd := gitcmd.Isolated(b.ctx, "--git-dir="+dir, "fast-import", "--quiet")
	cmd.Stdin = &stream
	if err := gitcmd.Run(cmd); err != nil {
		return err
	}
	_, err = git(b.ctx, dir, r, "push", "-q", r.url, "refs/heads/main", "refs/heads/afs/*:refs/heads/afs/*",
		"refs/afs/*:refs/afs/*")
	return err
}

// writeSession writes the refs of a session in the format of git fast-import.
func writeSession(out *bytes.Buffer, name string) error {
	now := time.Now().UTC().Truncate(time.Second)
	m := session.Meta{Version: 1, Session: name, Remote: "https://git.example/app.git", Ref: "refs/heads/main",
		Format: "sha1", Began: now,
		State: session.Closed, Lanes: []session.Lane{}}
	m.Title, m.Owner = "Session "+name+" of the measurement", "alice"
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	data := func(text string) { fmt.Fprintf(out, "data %d\n%s\n", len(text), text) }
	commit := func(ref, from string, files map[string]string) {
		fmt.Fprintf(out, "commit %s\ncommitter artifactfs <artifactfs@localhost> %d +0000\n", ref, now.Unix())
		data("session " + name)
		if from != "" {
			fmt.Fprintf(out, "from %s\n", from)
		}
		for path, text := range files {
			fmt.Fprintf(out, "M 100644 inline %s\n", path)
			data(text)
		}
		out.WriteString("\n")
	}
	files := map[string]string{}
	for i := range 10 {
		files[fmt.Sprintf("d%04d/%s-%d.txt", i, name, i)] = strings.Repeat(fmt.Sprintf("line %d of %s\n", i, name), 20)
	}
	branch := "refs/heads/afs/" + name + "/main"
	commit(branch, "refs/heads/main^0", files)
	commit(session.SegmentRef(name, "main", 1), branch, map[string]string{"untracked-" + name: "text " + name + "\n"})
	commit(session.TranscriptRef(name), "",
		map[string]string{"2026-01-01/none.jsonl": strings.Repeat(`{"type":"prompt","text":"`+name+`"}`+"\n", 20)})
	commit(session.MetaRef(name), "", map[string]string{session.MetaFile: string(text) + "\n", "transitions.jsonl": ""})
	return nil
}
