package wal

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// replayed is the position at which the replay of a file ended.
type replayed struct {
	end     int64  // offset behind the last valid record, in bytes
	last    uint64 // sequence number of the last valid record
	refused bool   // whether the next record is valid, but Options.Replay refused it
}

// replay calls emit for the records of a file of size bytes, up to the first invalid or refused record. It reads the
// file instead of mapping it, so that a bad sector causes an error and not a signal.
func replay(f io.ReaderAt, size int64, seed uint32, emit func(record []byte, time int64) error) (replayed, error) {
	at := replayed{end: headerSize}
	in := bufio.NewReaderSize(io.NewSectionReader(f, headerSize, max(0, size-headerSize)), 1<<20)
	for {
		record, time, ok, err := next(in, seed, at.last+1, size-at.end)
		if err != nil || !ok {
			return at, err
		}
		switch err := emit(record, time); {
		case errors.Is(err, ErrRefused):
			at.refused = true
			return at, nil
		case err != nil:
			return at, err
		}
		size := occupied(len(record))
		if size <= int64(in.Size()) {
			if _, err := in.Discard(int(size)); err != nil {
				return at, err
			}
		}
		at.last++
		at.end += size
	}
}

// next returns the next record. The result ok is false if the record is invalid or the log ends at this position. The
// parameter rest is the number of bytes up to the end of the file. A record that fits into the reader's buffer is not
// consumed: the caller must discard it.
func next(in *bufio.Reader, seed uint32, sequence uint64, rest int64) (record []byte, time int64, ok bool, err error) {
	b, err := in.Peek(recordHead)
	if err != nil {
		return nil, 0, false, notEOF(err)
	}
	h := (*head)(b)
	size := occupied(int(h.length()))
	if h.length() == 0 || h.length() > maxRecord || size > rest || h.sequence() != sequence {
		return nil, 0, false, nil
	}
	if size <= int64(in.Size()) {
		b, err = in.Peek(int(size))
	} else {
		b = make([]byte, size)
		_, err = io.ReadFull(in, b)
	}
	if err != nil {
		return nil, 0, false, notEOF(err)
	}
	h = (*head)(b)
	record = b[recordHead : recordHead+h.length()]
	return record, h.time(), h.fits(seed, record), nil
}

// notEOF returns nil if err means that the file has ended, which is the end of the log, and err itself otherwise.
func notEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// tail examines the bytes behind the end of the log. It returns the number of valid records there, and the offset
// behind the last byte that is not zero.
func tail(f io.ReaderAt, at replayed, size int64, seed uint32) (records, end int64, err error) {
	from := at.end
	end = from
	if at.refused {
		from += 8 // skip the beginning of the refused record, so that tail does not count that record
	}
	var word [8]byte
	var zeros [pageSize]byte
	in := bufio.NewReaderSize(io.NewSectionReader(f, from, max(0, size-from)), 1<<20)
	for off := from; ; {
		if b, _ := in.Peek(pageSize); bytes.Equal(b, zeros[:]) {
			n, _ := in.Discard(pageSize) // in most logs only zeros follow, so they are skipped a page at a time
			off += int64(n)
		}
		b, err := in.Peek(recordHead)
		if len(b) == 0 {
			if at.refused && end == at.end {
				end = from // the cut includes at least the head of the refused record
			}
			return records, end, notEOF(err)
		}
		clear(word[:])
		n := copy(word[:], b)
		if word != [8]byte{} {
			end = off + 8
		}
		if len(b) == recordHead {
			h := head(b)
			length := int64(h.length())
			if length > 0 && off+occupied(int(h.length())) <= size && length <= maxRecord && h.sequence() > at.last &&
				h.sequence()-at.last <= uint64(size/recordHead) {
				record := make([]byte, length)
				if _, err := f.ReadAt(record, off+recordHead); err == nil && h.fits(seed, record) {
					records++
					end = off + occupied(int(length))
					n = int(occupied(int(length)))
				}
			}
		}
		if n, err = in.Discard(n); err != nil && notEOF(err) != nil {
			return records, end, err
		}
		off += int64(n)
	}
}
