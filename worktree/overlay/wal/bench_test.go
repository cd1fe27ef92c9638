package wal

import (
	"path/filepath"
	"testing"
)

func BenchmarkAppend(b *testing.B) {
	l, _, err := Open(filepath.Join(b.TempDir(), "log"), Options{})
	if err != nil {
		b.Fatal(err)
	}
	record := make([]byte, 80)
	b.SetBytes(occupied(len(record)))
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Append(record, 1); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkReplay(b *testing.B) {
	path := filepath.Join(b.TempDir(), "log")
	l, _, err := Open(path, Options{})
	if err != nil {
		b.Fatal(err)
	}
	record := make([]byte, 80)
	for range 500_000 {
		if err := l.Append(record, 1); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(l.Size())
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, rec, err := Open(path, Options{Salvage: true}); err != nil || rec.Records != 500_000 {
			b.Fatalf("open the log: got %+v, %v", rec, err)
		}
	}
}
