CREATE TABLE author (id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT NOT NULL);
CREATE TABLE book (id INTEGER PRIMARY KEY, title TEXT NOT NULL, author_id INTEGER REFERENCES author(id), year INTEGER, pages INTEGER);
CREATE TABLE loan (id INTEGER PRIMARY KEY, book_id INTEGER REFERENCES book(id), reader TEXT NOT NULL, days INTEGER);
INSERT INTO author VALUES (1, 'Ines Roth', 'Austria'), (2, 'Jon Vale', 'Ireland'), (3, 'Mara Lind', 'Sweden'), (4, 'Paul Orme', 'Ireland');
INSERT INTO book VALUES (1, 'North Light', 3, 1998, 310), (2, 'The Ferry', 2, 2004, 188), (3, 'Salt', 2, 2011, 240), (4, 'A Late Train', 1, 2015, 402), (5, 'Two Rivers', 4, 1987, 275), (6, 'Winter Bread', 3, 2020, 96);
INSERT INTO loan VALUES (1, 1, 'Ada', 14), (2, 2, 'Ada', 7), (3, 2, 'Ben', 21), (4, 4, 'Cleo', 30), (5, 5, 'Ben', 3), (6, 2, 'Cleo', 10), (7, 6, 'Dan', NULL);
